"""Generated kernels of row-wise nodes against the interpreter, in three schedules, under the race detector."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llmc.codegen.cuda.kernel import render
from llmc.codegen.cuda.rows.kernel import write_rows
from llmc.codegen.cuda.target import nvrtc
from llmc.codegen.cuda.target.capabilities import TARGETS
from llmc.codegen.cuda.target.nvrtc import TEMPLATES
from llmc.emulator.build import BuildError
from llmc.emulator.session import THREE_SCHEDULES, CudaError
from llmc.ir.formats import Scheme
from llmc.ir.graph import Graph, IRError
from llmc.ir.parser import parse
from tests.cuda import sass
from tests.cuda.harness import Lab
from tests.cuda.kernels import rows_examples
from tests.cuda.kernels.references import Wrong
from tests.cuda.kernels.rows_bodies import Body, bodies
from tests.cuda.kernels.rows_lab import Case, Results, compare, launch, make_case, part
from tests.models import captured, random_layers, row_ops
from tests.models.captured import EDGES

STEP_INPUTS = ("ids", "positions")
MODELS = {
    "llama": captured.llama,
    "interleaved": lambda: captured.llama(2, True, 12),
    "gpt2": captured.gpt2,
    "gemma": captured.gemma,
    "twin": captured.twin,
    "crossing": row_ops.crossing,
}
_FOUND = [(name, body) for name, model in MODELS.items() for body in bodies(model())]


def parsed(text: str) -> Graph:
    return parse(f"graph rows {{\n dims R in [1, inf], T in [1, inf]\n{text}\n}}")


def distinct(found: list[tuple[str, Body]]) -> list[tuple[str, Body]]:
    """Bodies whose kernels differ: layers repeat themselves."""
    kernels = {repr(make_case(body.graph).params): (name, body) for name, body in reversed(found)}
    return list(reversed(kernels.values()))


@pytest.mark.parametrize(("name", "body"), distinct(_FOUND), ids=lambda x: x if isinstance(x, str) else x.where)
def test_bodies_of_models(lab: Lab, name: str, body: Body) -> None:
    """Blocks beyond the rows of the step are in the launch, and change nothing."""
    case = make_case(body.graph, given=body.weights)
    for schedule in THREE_SCHEDULES:
        compare(case, launch(lab, case, schedule, bucket=case.num_rows + 3))


def test_half_precision_of_the_other_kind(lab: Lab) -> None:
    for model in (captured.llama, captured.gemma):
        for body in bodies(model(1), Scheme.F16):
            case = make_case(body.graph, given=body.weights)
            compare(case, launch(lab, case, THREE_SCHEDULES[2]))


@pytest.mark.parametrize("number", range(len(row_ops.sections())))
def test_every_op(lab: Lab, number: int) -> None:
    """Edge values, widths with tails, every layout a row can have."""
    ids = (np.arange(len(EDGES) + 3) % len(EDGES)).astype(np.int32)
    for body in bodies(row_ops.sections()[number].finish()):
        places = {
            v: ids if v.name == "ids" else np.arange(len(ids)) for v in body.graph.inputs if v.name in STEP_INPUTS
        }
        case = make_case(body.graph, given=body.weights | places, tokens=len(ids))
        compare(case, launch(lab, case, THREE_SCHEDULES[number % 3], bucket=len(ids) + 2))


@pytest.mark.parametrize("seed", range(4))
def test_random_layers(lab: Lab, seed: int) -> None:
    """Layers that no architecture has, many in one body."""
    for body in bodies(random_layers.forest(seed, 4)):
        case = make_case(body.graph, seed, given=body.weights)
        compare(case, launch(lab, case, THREE_SCHEDULES[seed % 3]), slack=16)


@pytest.mark.parametrize("width", [1, 4099, 8192, 9000, 16392, 20001])
def test_rows_of_any_length(lab: Lab, width: int) -> None:
    """One round of the threads, several kept in registers, and so many that the loop is rolled and reads again."""
    for graph in (rows_examples.rms_norm_residual(width), rows_examples.layer_norm(width)):
        case = make_case(graph, width, tokens=2)
        compare(case, launch(lab, case, THREE_SCHEDULES[2]))
        assert any("k <" in line for line in case.params.text) == (width > 4096)
        assert any("kept" in line for line in case.params.text) == (width < 16392)


@pytest.mark.parametrize("shape", [(3, 5), (40, 12), (2, 300), (64, 128), (7, 8)])
def test_several_reductions_in_a_row(lab: Lab, shape: tuple[int, int]) -> None:
    """By segments of a warp and by whole warps, along either axis."""
    text = f"inputs %x: f32[T, {shape[0]}, {shape[1]}]\n%s = softmax(%x) : f32[T, {shape[0]}, {shape[1]}]\n"
    for fn in ("sum", "mean", "max", "min"):
        text += f"%{fn}1 = reduce{{fn={fn}, axis=1}}(%x) : f32[T, 1, {shape[1]}]\n"
        text += f"%{fn}2 = reduce{{fn={fn}, axis=2}}(%x) : f32[T, {shape[0]}, 1]\n"
    case = make_case(parsed(text + "outputs %s, %sum1, %sum2, %mean1, %mean2, %max1, %max2, %min1, %min2"), tokens=3)
    compare(case, launch(lab, case, THREE_SCHEDULES[1]))


# --- a row's result has one value


def row_bytes_of(case: Case, results: Results, row: int) -> list[bytes]:
    return [raw[row].tobytes() for raw in results.outputs.values()]


@pytest.mark.parametrize(("name", "body"), distinct(_FOUND), ids=lambda x: x if isinstance(x, str) else x.where)
def test_rows_do_not_depend_on_their_company(lab: Lab, name: str, body: Body) -> None:
    fast = replace(lab, checked=False, _kernels={}, _arrays=[], _inputs=[])
    case = make_case(body.graph, given=body.weights)
    whole = launch(fast, case, THREE_SCHEDULES[0])
    for first, rows in ((0, 1), (1, 1), (2, 2), (1, 3)):
        few = launch(fast, part(case, first, rows), THREE_SCHEDULES[1], bucket=rows + 1)
        for row in range(rows):
            assert row_bytes_of(case, few, row) == row_bytes_of(case, whole, first + row)


@pytest.mark.parametrize("width", [8, 17, 24, 48, 128, 264, 576, 1000])
def test_a_reduction_has_one_order_whatever_else_the_kernel_does(lab: Lab, width: int) -> None:
    """Prefill and decode fuse other nodes around the same norm; its bits must not tell."""
    alone = rows_examples.rms_norm(width)
    beside = parsed(f"""
        inputs %x: f32[T, {width}], %norm: f32[{width}], %wide: f32[T, 4096], %odd: f32[T, 3, 20]
        %y = rms_norm{{eps=1e-05}}(%x, %norm) : f32[T, {width}]
        %z = cast{{dtype=bf16}}(%y) : bf16[T, {width}]
        %a = rms_norm{{eps=1e-05}}(%wide) : f32[T, 4096]
        %b = softmax(%odd) : f32[T, 3, 20]
        outputs %z, %y, %a, %b""")
    first, second = make_case(alone, 3), make_case(beside, 4)
    shared = {v: first.arrays[u] for u, v in zip(alone.inputs, beside.inputs, strict=False)}
    second = replace(second, arrays=second.arrays | shared)
    assert second.params.threads > first.params.threads
    results = [launch(lab, case, THREE_SCHEDULES[2]) for case in (first, second)]
    assert results[0].outputs[0].tobytes() == results[1].outputs[0].tobytes()
    compare(second, results[1])


# --- what holds a kernel together


def small_examples() -> dict[str, Graph]:
    """A kernel for each kind of loop and reduction."""
    return {
        "block": rows_examples.layer_norm(576),
        "segment": rows_examples.queries_keys_values(4, 2, 16, norms=True),
        "warp": parsed("inputs %x: f32[T, 5, 12]\n%y = softmax(%x) : f32[T, 5, 12]\noutputs %y"),
        "shared": parsed(
            "inputs %x: f32[T, 8, 24]\n%p = permute{perm=[0, 2, 1]}(%x) : f32[T, 24, 8]\n"
            "%v = view{shape=[T, 192]}(%p) : f32[T, 192]\n"
            "%a = slice{axis=1, start=96, stop=192, step=1}(%v) : f32[T, 96]\n"
            "%b = slice{axis=1, start=0, stop=96, step=1}(%v) : f32[T, 96]\n"
            "%y = binary{fn=mul}(%a, %b) : f32[T, 96]\noutputs %y"
        ),
        "gathered": rows_examples.sampled(40),
    }


@pytest.mark.parametrize("name", small_examples())
def test_every_barrier_and_bound_is_needed(lab: Lab, name: str) -> None:
    """Without any one of its synchronisations, or with a bound moved by one, the kernel is caught."""
    case = make_case(small_examples()[name])
    found = list(mutants(case.params.text))
    assert len(found) >= 3
    survivors = []
    for mutant in found:
        broken = replace(case, params=replace(case.params, text=mutant))
        if not caught(lab, broken):
            survivors.append("\n".join(line for line in mutant if line not in case.params.text) or "a line deleted")
    assert not survivors


def mutants(text: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """One line left out or changed. A bound of elements is raised only where what it guards is stored for others: the
    sums of lanes behind the last segment are nobody's."""

    def with_line(i: int, *line: str) -> tuple[str, ...]:
        return (*text[:i], *line, *text[i + 1 :])

    for i, line in enumerate(text):
        if line in ("__syncthreads();", "grid_wait();") or line.endswith("return;"):
            yield with_line(i)
        if "row >= counts->" in line:
            yield with_line(i, line.replace(">=", ">"))
        bound = re.search(r"j < (\d+)", line)
        if bound:
            group = re.search(r"j % (\d+) == 0", line)
            step = int(group[1]) if group else 1  # only the first lane of a segment counts
            yield with_line(i, line.replace(bound[0], f"j < {int(bound[1]) - step}"))
            end = text.index(line[: len(line) - len(line.lstrip())] + "}", i) if line.endswith("{") else i
            if any("put" in guarded for guarded in text[i + 1 : end]):
                yield with_line(i, line.replace(bound[0], f"j < {int(bound[1]) + 1}"))


def caught(lab: Lab, case: Case) -> bool:
    for schedule in THREE_SCHEDULES:
        try:
            compare(case, launch(lab, case, schedule, bucket=case.num_rows + 2))
        except (Wrong, CudaError, BuildError):
            return True
    return False


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("int bit = LANES / 2", "int bit = LANES / 4"),
        ("v = over_lanes<Op, 32>(v);", "v = over_lanes<Op, 16>(v);"),
        ("__shfl_xor_sync(0xffffffffu, v, bit)", "__shfl_xor_sync(0x0000ffffu, v, bit)"),
        ("if (threadIdx.x % 32 == 0) partial", "if (threadIdx.x % 64 == 0) partial"),
        ("partial[threadIdx.x / 32] = v", "partial[threadIdx.x / 64] = v"),
        ("for (int i = 1; i < N; i++) v = Op::of", "for (int i = 2; i < N; i++) v = Op::of"),
    ],
)
def test_reductions_join_every_lane_and_warp(lab: Lab, tmp_path: Path, right: str, wrong: str) -> None:
    for header in TEMPLATES.glob("*.cuh"):
        text = header.read_text()
        if header.name == "rows.cuh":
            assert text.count(right) == 1
            text = text.replace(right, wrong)
        (tmp_path / header.name).write_text(text)
    broken = replace(lab, headers=tmp_path, _kernels={}, _arrays=[], _inputs=[])
    assert caught(broken, make_case(rows_examples.layer_norm(576)))


# --- what has no code


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("inputs %x: f32[T, 4]\n%y = quantize_rows{group=0}(%x) : i8[T, 4]{groups0}\noutputs %y", r"i8\[T, 4\]"),
        ("inputs %x: f32[T, 4]\n%y = cast{dtype=i32}(%x) : i32[T, 4]\noutputs %y", "to i32 at no module"),
        ("inputs %x: i32[T]\n%y = binary{fn=div}(%x, %x) : i32[T]\noutputs %y", "DIV.*no CUDA expression"),
        (
            "inputs %x: f32[T, 2, 4], %w: f32[4, 4]\n%y = linear(%x, %w) : f32[T, 2, 4]\noutputs %y",
            "linear at no module has no CUDA code",
        ),
        (
            "inputs %x: f32[T, 4], %r: i32[R], %z: f32[T, 4]\n%a = gather_rows(%x, %r) : f32[R, 4]\n"
            "%b = binary{fn=add}(%x, %z) : f32[T, 4]\noutputs %a, %b",
            "read both whole and gathered",
        ),
        (
            "inputs %t: f32[9, 4], %i: i32[T, 2]\n%y = embedding(%t, %i) : f32[T, 2, 4]\noutputs %y",
            "not one integer per row",
        ),
        (
            "inputs %x: f32[T, 4]\n%y = reduce{fn=sum, axis=0}(%x) : f32[1, 4]\noutputs %y",
            "no code writes|only f32 inside a row",
        ),
        ("inputs %x: f32[3, 4]\n%y = unary{fn=exp}(%x) : f32[3, 4]\noutputs %y", "counted by nothing"),
        (
            "inputs %kv: kv, %k: f32[T, 1, 4], %p: i32[T], %s: i32[T]\n"
            "%y = kv_write{slot=0, dtype=f32}(%kv, %k, %k, %p, %s) : kv\noutputs %y",
            "KV cache in f32",
        ),
    ],
)
def test_what_has_no_code_is_refused(text: str, message: str) -> None:
    with pytest.raises(IRError, match=message):
        write_rows(parsed(text))


def test_layers_share_kernels() -> None:
    """Llama's layers differ in their weights and cache slots only."""
    kernels = [make_case(b.graph).params for b in bodies(captured.llama(4)) if b.where.startswith("decode")]
    assert len(kernels) == 13 and len(set(kernels)) < 8


# --- what the GPU's compiler makes of them


@pytest.mark.parametrize("arch", TARGETS)
def test_kernels_of_models_stay_in_registers(arch: str) -> None:
    """All of the tiny models' kernels in one source: no warning, no stack, no spill, budgets kept."""
    kernels = {f"k{i}": make_case(b.graph).params for i, (_, b) in enumerate(distinct(_FOUND))}
    source = "".join(render(p, name) for name, p in kernels.items())
    compiled = nvrtc.compile_cubin(source, arch)
    assert not compiled.log, compiled.log
    resources, counts = sass.resources(compiled.cubin), sass.opcodes(compiled.cubin)
    target = TARGETS[arch]
    found = [
        f"{name} {p.name}: {v}"
        for name, p in kernels.items()
        for v in sass.judge(resources[name], counts[name], p.budget(target))
    ]
    assert not found, "\n".join(found)
