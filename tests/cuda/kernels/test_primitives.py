"""One assertion per primitive: compiled for every target that has it, its PTX is the instruction meant
and its SASS
the opcode meant. Inline PTX is never executed here; this is what stands in for it (docs/gpu-status.md)."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cache

import pytest

from llmc.codegen.cuda.target.capabilities import TARGETS
from llmc.codegen.cuda.target.nvrtc import TEMPLATES, Compiled, compile_cubin
from tests.cuda import sass

SM80 = tuple(TARGETS)
SM89 = ("sm_89", "sm_90a", "sm_100a")
SM90 = ("sm_90a", "sm_100a")
HOPPER = ("sm_90a",)


@dataclass(frozen=True)
class Primitive:
    """`body` sees: p (float*), b (unsigned char*), map, s (shared address), x (u32), f (float), t
    (thread)."""

    name: str
    body: str
    ptx: str
    opcode: str
    archs: tuple[str, ...]


_REGS = "float d[%d]; for (int i = 0; i < %d; i++) d[i] = p[i];"
_OUT = " for (int i = 0; i < %d; i++) p[i] = d[i];"


def _wgmma(kind: str, acc: str, n: int, shape: str, types: str, opcode: str) -> list[Primitive]:
    r = n // 2
    head = f"{acc} d[{r}]; for (int i = 0; i < {r}; i++) d[i] = ({acc})p[i]; wgmma_fence(); "
    tail = f" wgmma_commit(); wgmma_wait<0>(); for (int i = 0; i < {r}; i++) p[i] = d[i];"
    ptx = rf"wgmma\.mma_async\.sync\.aligned\.{shape}\.{types}"
    return [
        Primitive(f"wgmma_ss {kind} n{n}", head + f"wgmma_ss<{kind}>(d, s, s + 64, x);" + tail, ptx, opcode, HOPPER),
        Primitive(
            f"wgmma_rs {kind} n{n}",
            head + f"u32 a[4] = {{x, x + 1, x + 2, x + 3}}; wgmma_rs<{kind}>(d, a, s, x);" + tail,
            ptx,
            opcode,
            HOPPER,
        ),
    ]


def _mma(kind: str, acc: str, ptx: str, opcode: str, archs: tuple[str, ...]) -> Primitive:
    body = f"{acc} c[4] = {{}}; u32 a[4] = {{x, x + 1, x + 2, x + 3}}; mma_{kind}(c, a, x, x + 5); for (int i = 0; i < 4; i++) p[i] = c[i];"
    return Primitive(f"mma_{kind}", body, ptx, opcode, archs)


PRIMITIVES = [
    Primitive("float_bits", "((u32*)b)[t] = float_bits(f);", r"mov\.b32|st\.global", "", SM80),
    Primitive("bits_float", "p[t] = bits_float(x) + f;", r"mov\.b32|add", "", SM80),
    Primitive("double_bits", "((u64*)b)[t] = double_bits(double(f));", r"cvt\.f64\.f32", "F2F.F64.F32", SM80),
    Primitive("bits_double", "p[t] = float(bits_double(u64(x) << 40));", r"cvt\.rn\.f32\.f64", "F2F.F32.F64", SM80),
    Primitive("to_f32 bf16", "*p = to_f32(((bf16*)b)[t]);", r"shl\.b32|mov\.b32|prmt", "", SM80),
    Primitive("to_bf16", "((bf16*)b)[t] = to_bf16(f);", r"cvt\.rn\.bf16\.f32", "F2FP.BF16", SM80),
    Primitive("to_f32 f16", "*p = to_f32(((f16*)b)[t]);", r"cvt\.f32\.f16", "HADD2.F32", SM80),
    Primitive("to_f16", "((f16*)b)[t] = to_f16(f);", r"cvt\.rn\.f16\.f32", "F2FP", SM80),
    Primitive("to_f32 e4m3", "*p = to_f32(((e4m3*)b)[t]);", r"cvt\.rn\.f16x2\.e4m3x2", "F2FP.F16.E4M3", SM89),
    Primitive(
        "to_e4m3",
        "((e4m3*)b)[t] = to_e4m3(f);",
        r"cvt\.rn\.satfinite\.e4m3x2\.f32",
        "F2FP.SATFINITE.E4M3",
        SM89,
    ),
    Primitive("pack_bf16", "*(u32*)b = pack_bf16(f, f + 1);", r"cvt\.rn\.bf16x2\.f32", "F2FP.BF16", SM80),
    Primitive("exp2_approx", "*p = exp2_approx(f);", r"ex2\.approx\.ftz\.f32", "MUFU.EX2", SM80),
    Primitive("rsqrt_approx", "*p = rsqrt_approx(f);", r"rsqrt\.approx\.ftz\.f32", "MUFU.RSQ", SM80),
    Primitive("rcp_approx", "*p = rcp_approx(f);", r"rcp\.approx\.ftz\.f32", "MUFU.RCP", SM80),
    Primitive(
        "load16",
        "Vec16 v = load16(b); p[t] = v.x[0] + v.x[1] * v.x[2] + v.x[3];",
        r"ld\.global\.v4\.u32",
        "LDG.E.128",
        SM80,
    ),
    Primitive(
        "load16_stream",
        "Vec16 v = load16_stream(b); p[t] = v.x[0] + v.x[1] * v.x[2] + v.x[3];",
        r"ld\.global\.nc\.L1::no_allocate\.L2::128B\.v4\.u32",
        "LDG.E.NA.LTC128B.128.CONSTANT",
        SM80,
    ),
    Primitive("store16", "store16(b, Vec16{{x, x, x, x}});", r"st\.global\.v4\.u32", "STG.E.128", SM80),
    Primitive("load8", "Vec8 v = load8(b); p[t] = v.x[0] + v.x[1];", r"ld\.global\.v2\.u32", "LDG.E.64", SM80),
    Primitive("store8", "store8(b, Vec8{{x, x}});", r"st\.global\.v2\.u32", "STG.E.64", SM80),
    Primitive("load4", "p[t] = load4(b);", r"ld\.global\.u32", "LDG.E", SM80),
    Primitive("store4", "store4(b, x);", r"st\.global\.u32", "STG.E", SM80),
    Primitive(
        "cp_async16",
        "cp_async16(s, b, x & 1);",
        r"cp\.async\.cg\.shared\.global",
        "LDGSTS.E.BYPASS.128",
        SM80,
    ),
    Primitive(
        "cp_async16_head",
        "cp_async16_head(s, b, int(x & 15));",
        r"cp\.async\.cg\.shared\.global",
        "LDGSTS.E.BYPASS.128",
        SM80,
    ),
    Primitive(
        "cp_async_commit",
        "cp_async16(s, b); cp_async_commit();",
        r"cp\.async\.commit_group",
        "LDGDEPBAR",
        SM80,
    ),
    Primitive(
        "cp_async_wait",
        "cp_async16(s, b); cp_async_commit(); cp_async_wait<0>();",
        r"cp\.async\.wait_group 0",
        "DEPBAR.LE",
        SM80,
    ),
    Primitive(
        "ldmatrix_x4",
        "u32 r[4]; ldmatrix_x4(r, s); p[t] = r[0] + r[3];",
        r"ldmatrix\.sync\.aligned\.m8n8\.x4\.shared",
        "LDSM.16.M88.4",
        SM80,
    ),
    Primitive(
        "ldmatrix_x4_trans",
        "u32 r[4]; ldmatrix_x4_trans(r, s); p[t] = r[0] + r[3];",
        r"ldmatrix\.sync\.aligned\.m8n8\.x4\.trans",
        "LDSM.16.MT88.4",
        SM80,
    ),
    _mma(
        "bf16",
        "float",
        r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.bf16\.bf16\.f32",
        "HMMA.16816.F32.BF16",
        SM80,
    ),
    _mma("f16", "float", r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.f16\.f16\.f32", "HMMA.16816.F32", SM80),
    _mma(
        "s8",
        "int",
        r"mma\.sync\.aligned\.m16n8k32\.row\.col\.s32\.s8\.s8\.s32",
        "IMMA.16832.S8.S8",
        ("sm_80", "sm_89", "sm_90a"),
    ),
    _mma(
        "e4m3",
        "float",
        r"mma\.sync\.aligned\.m16n8k32\.row\.col\.f32\.e4m3\.e4m3\.f32",
        "QMMA.16832.F32.E4M3.E4M3",
        ("sm_89",),
    ),
    Primitive("named_barrier_sync", "named_barrier_sync(1, 64);", r"barrier\.sync\.aligned", "BAR.SYNC", SM80),
    Primitive("named_barrier_arrive", "named_barrier_arrive(1, 64);", r"barrier\.arrive\.aligned", "BAR.ARV", SM80),
    Primitive(
        "atomic_add u32",
        "p[t] = atomic_add((u32*)b, x);",
        r"atom\.global\.gpu\.relaxed\.add\.u32",
        "ATOMG.E.ADD",
        SM80,
    ),
    Primitive(
        "smem_atomic_add",
        "p[t] = smem_atomic_add(s, x);",
        r"atom\.shared\.cta\.relaxed\.add\.u32",
        "ATOMS.ADD",
        SM80,
    ),
    Primitive(
        "atomic_add f32",
        "p[t] = atomic_add((float*)b, f);",
        r"atom\.global\.gpu\.relaxed\.add\.f32",
        "ATOMG.E.ADD.F32",
        SM80,
    ),
    Primitive(
        "atomic_max",
        "p[t] = atomic_max((u32*)b, x);",
        r"atom\.global\.gpu\.relaxed\.max\.u32",
        "ATOMG.E.MAX",
        SM80,
    ),
    Primitive(
        "atomic_exchange",
        "p[t] = atomic_exchange((u32*)b, x);",
        r"atom\.global\.gpu\.relaxed\.exch\.b32",
        "ATOMG.E.EXCH",
        SM80,
    ),
    Primitive(
        "load_acquire",
        "p[t] = load_acquire((u32*)b);",
        r"ld\.acquire\.gpu\.global\.u32",
        "LDG.E.STRONG.GPU",
        SM80,
    ),
    Primitive(
        "store_release",
        "store_release((u32*)b, x);",
        r"st\.release\.gpu\.global\.u32",
        "STG.E.STRONG.GPU",
        SM80,
    ),
    Primitive("grid_wait", "grid_wait();", r"griddepcontrol\.wait", "ACQBULK", SM90),
    Primitive(
        "grid_launch_dependents",
        "grid_launch_dependents();",
        r"griddepcontrol\.launch_dependents",
        "PREEXIT",
        SM90,
    ),
    Primitive(
        "multiply_at_once",
        "float c[1][4] = {}; p[t] = multiply_at_once<bf16, 1, 1, 2>(c, [](int, int) { return 0u; }, [](int) { return 0u; });",
        r"mov\.(?:u32|b32)\s+%r\d+, 0;",  # false, and nothing else
        "",
        SM80,
    ),
    Primitive("warp_sum", "p[t] = warp_sum(f + t);", r"shfl\.sync\.bfly", "SHFL.BFLY", SM80),
    Primitive(
        "warp_sum4",
        "float v[4] = {f, f + 1, f * 2, f * 3}; p[t] = warp_sum4(v);",
        r"shfl\.sync\.bfly",
        "SHFL.BFLY",
        SM80,
    ),
    Primitive("warp_max", "p[t] = warp_max(f + t);", r"shfl\.sync\.bfly", "SHFL.BFLY", SM80),
    Primitive("min_of", "p[t] = float(min_of(int(x), t));", r"min\.s32", "", SM80),
    Primitive("max_of", "p[t] = float(max_of(int(x), t));", r"max\.s32", "", SM80),
    Primitive("mbar_init", "mbar_init(s, x);", r"mbarrier\.init\.shared::cta\.b64", "SYNCS", SM90),
    Primitive(
        "mbar_fence_init",
        "mbar_init(s, 1); mbar_fence_init();",
        r"fence\.mbarrier_init\.release\.cluster",
        "",
        SM90,
    ),
    Primitive("mbar_arrive", "mbar_arrive(s);", r"mbarrier\.arrive\.shared::cta\.b64", "SYNCS.ARRIVE", SM90),
    Primitive(
        "mbar_expect_tx",
        "mbar_expect_tx(s, x);",
        r"mbarrier\.arrive\.expect_tx",
        "SYNCS.ARRIVE.TRANS64",
        SM90,
    ),
    Primitive("mbar_wait", "mbar_wait(s, x & 1);", r"mbarrier\.try_wait\.parity", "SYNCS.PHASECHK", SM90),
    Primitive(
        "fence_proxy_async",
        "fence_proxy_async();",
        r"fence\.proxy\.async\.shared::cta",
        "FENCE.VIEW.ASYNC",
        SM90,
    ),
    *[
        Primitive(
            f"tma_load_{n}d",
            f"if (t == 0) tma_load_{n}d(s, &map, s + 512{', x' * n});",
            rf"cp\.async\.bulk\.tensor\.{n}d\.shared::cluster\.global",
            f"UTMALDG.{n}D",
            SM90,
        )
        for n in (1, 2, 3)
    ],
    *[
        Primitive(
            f"tma_store_{n}d",
            f"if (t == 0) tma_store_{n}d(&map, s{', x' * n});",
            rf"cp\.async\.bulk\.tensor\.{n}d\.global\.shared::cta",
            f"UTMASTG.{n}D",
            SM90,
        )
        for n in (1, 2, 3)
    ],
    Primitive("tma_commit", "tma_commit();", r"cp\.async\.bulk\.commit_group", "UTMACMDFLUSH", SM90),
    Primitive(
        "tma_wait_read",
        "tma_commit(); tma_wait_read<0>();",
        r"cp\.async\.bulk\.wait_group\.read 0",
        "DEPBAR.LE",
        SM90,
    ),
    Primitive("tma_wait", "tma_commit(); tma_wait<0>();", r"cp\.async\.bulk\.wait_group 0", "DEPBAR", SM90),
    *_wgmma("bf16", "float", 8, "m64n8k16", r"f32\.bf16\.bf16", "HGMMA.64x8x16.F32.BF16"),
    *_wgmma("bf16", "float", 16, "m64n16k16", r"f32\.bf16\.bf16", "HGMMA.64x16x16.F32.BF16"),
    *_wgmma("bf16", "float", 32, "m64n32k16", r"f32\.bf16\.bf16", "HGMMA.64x32x16.F32.BF16"),
    *_wgmma("bf16", "float", 64, "m64n64k16", r"f32\.bf16\.bf16", "HGMMA.64x64x16.F32.BF16"),
    *_wgmma("bf16", "float", 128, "m64n128k16", r"f32\.bf16\.bf16", "HGMMA.64x128x16.F32.BF16"),
    *_wgmma("bf16", "float", 192, "m64n192k16", r"f32\.bf16\.bf16", "HGMMA.64x192x16.F32.BF16"),
    *_wgmma("bf16", "float", 256, "m64n256k16", r"f32\.bf16\.bf16", "HGMMA.64x256x16.F32.BF16"),
    *_wgmma("f16", "float", 8, "m64n8k16", r"f32\.f16\.f16", "HGMMA.64x8x16.F32"),
    *_wgmma("f16", "float", 128, "m64n128k16", r"f32\.f16\.f16", "HGMMA.64x128x16.F32"),
    *_wgmma("e4m3", "float", 128, "m64n128k32", r"f32\.e4m3\.e4m3", "QGMMA.64x128x32.F32.E4M3.E4M3"),
    *_wgmma("s8", "int", 128, "m64n128k32", r"s32\.s8\.s8", "IGMMA.64x128x32.S8.S8"),
    Primitive("wgmma_fence", "wgmma_fence();", r"wgmma\.fence\.sync\.aligned", "WARPGROUP.ARRIVE", HOPPER),
    Primitive(
        "wgmma_commit",
        _wgmma("bf16", "float", 64, "", "", "")[0].body,
        r"wgmma\.commit_group",
        "HGMMA",
        HOPPER,
    ),
    Primitive(
        "wgmma_wait",
        _wgmma("bf16", "float", 64, "", "", "")[0].body,
        r"wgmma\.wait_group\.sync\.aligned 0",
        "WARPGROUP.DEPBAR",
        HOPPER,
    ),
    Primitive(
        "setmaxnreg_inc",
        "setmaxnreg_inc<232>();",
        r"setmaxnreg\.inc\.sync\.aligned\.u32 232",
        "USETMAXREG",
        HOPPER,
    ),
    Primitive(
        "setmaxnreg_dec",
        "setmaxnreg_dec<40>();",
        r"setmaxnreg\.dec\.sync\.aligned\.u32 40",
        "USETMAXREG",
        HOPPER,
    ),
]


@cache
def _compiled(arch: str) -> Compiled:
    """Every primitive the target has, one kernel each, in one compilation."""
    source = '#include "device.cuh"\n'
    for i, q in enumerate(PRIMITIVES):
        if arch in q.archs:
            source += (
                f"LLMC_KERNEL(128, 1) k{i}(float* p, unsigned char* b, const __grid_constant__ TensorMap map, u32 x, float f) {{\n"
                f"  LLMC_SMEM(raw); const u32 s = smem_addr(raw) + x * 1024; const int t = threadIdx.x; {q.body}\n}}\n"
            )
    return compile_cubin(source, arch)


@cache
def _opcodes(arch: str) -> dict[str, Counter[str]]:
    return sass.opcodes(_compiled(arch).cubin)


@pytest.mark.parametrize("index", range(len(PRIMITIVES)), ids=[q.name.replace(" ", "-") for q in PRIMITIVES])
def test_instruction(index: int) -> None:
    q = PRIMITIVES[index]
    for arch in q.archs:
        kernel = re.search(rf"\.entry k{index}\((?:(?!\.entry).)*", _compiled(arch).ptx, re.S)
        assert kernel and re.search(q.ptx, kernel[0]), f"{q.name} on {arch}: no PTX {q.ptx}"
        if q.opcode:
            counts = _opcodes(arch)[f"k{index}"]
            assert sass.matching(counts, q.opcode), f"{q.name} on {arch}: no {q.opcode} in {sorted(counts)}"


def test_every_primitive_is_asserted() -> None:
    """Each function of device.cuh appears in some body above (smem_addr is in all of them)."""
    text = (TEMPLATES / "device.cuh").read_text()
    names = set(re.findall(r"^LLMC_DEVICE [\w ]+?(\w+)\(", text, re.M)) | set(
        re.findall(r"^LLMC_MMA\((\w+),", text, re.M)
    )
    bodies = " ".join(q.body for q in PRIMITIVES) + " smem_addr bf16_lo bf16_hi wgmma_desc_sw128"
    assert not sorted(n for n in names if n not in bodies)
    assert len(names) >= 40
