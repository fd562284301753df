"""A linear in each published format: the tensors that tools write, and the weight that they say these stand for.

Codes, scales and zero points are drawn at random, so that every code occurs; the weight follows by the formula.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tests.sources.quantised.packing import E2M1, into_bytes, into_words, spread

Tensor = torch.Tensor
Shape = tuple[int, int]


@dataclass(frozen=True)
class Linear:
    """`tensors` by what follows the module's path, `weight` [N, K]; `made`: torchao's metadata of it."""

    tensors: Mapping[str, Tensor]
    weight: Tensor
    made: dict[str, Any] | None = None


Writer = Callable[[Shape, torch.Generator], Linear]


@dataclass(frozen=True)
class Form:
    """`settings`: config.json's quantization_config. `write`: a linear of a shape, drawn with a seed."""

    settings: Mapping[str, Any]
    write: Writer


def draw(shape: tuple[int, ...], low: int, high: int, g: torch.Generator) -> Tensor:
    """Integers in [low, high)."""
    return torch.randint(low, high, shape, generator=g)


def scales(shape: tuple[int, ...], k: int, largest: float, dtype: torch.dtype, g: torch.Generator) -> Tensor:
    """So that weights of codes up to `largest` are about K ** -0.5."""
    drawn: Tensor = (0.5 + torch.rand(shape, generator=g)) * k**-0.5 / largest
    return drawn.to(dtype)


def gptq(
    bits: int = 4, group: int = 128, symmetric: bool = True, less: int = 1, act_order: bool = False, zero: bool = False
) -> Writer:
    """`less`: what stored zero points are less by; `zero`: draw some that are 0."""

    def write(shape: Shape, g: torch.Generator) -> Linear:
        n, k = shape
        size = k if group == -1 else group
        groups = -(-k // size)
        half = 1 << (bits - 1)
        codes = draw((k, n), 0, 2 * half, g)
        zeros = torch.full((groups, n), half) if symmetric else draw((groups, n), less, 2 * half - 1 + less, g)
        if zero:
            zeros[:, ::3] = 0
        s = scales((groups, n), k, half, torch.float16, g)
        g_idx = torch.arange(k) // size
        if act_order:
            g_idx = g_idx[torch.randperm(k, generator=g)]
        weight = (codes - zeros[g_idx]).float() * s.float()[g_idx]
        tensors = {
            "qweight": into_words(codes.T.contiguous(), bits).T.contiguous(),
            "qzeros": into_words(zeros - less, bits),
            "scales": s,
            "g_idx": g_idx.to(torch.int32),
        }
        return Linear(tensors, weight.T.contiguous())

    return write


def awq(group: int = 128) -> Writer:
    def write(shape: Shape, g: torch.Generator) -> Linear:
        n, k = shape
        size = k if group == -1 else group
        groups = -(-k // size)
        codes, zeros = draw((k, n), 0, 16, g), draw((groups, n), 0, 16, g)
        s = scales((groups, n), k, 8, torch.float16, g)
        order = (0, 2, 4, 6, 1, 3, 5, 7)  # AutoAWQ's order_map: the column that each place of a word holds
        of = torch.arange(k) // size
        weight = (codes - zeros[of]).float() * s.float()[of]
        tensors = {"qweight": into_words(codes, 4, order), "qzeros": into_words(zeros, 4, order), "scales": s}
        return Linear(tensors, weight.T.contiguous())

    return write


def ct_packed(bits: int = 4, group: int = 64, symmetric: bool = True, act_order: bool = False) -> Writer:
    """compressed-tensors' pack-quantized; group 0: a scale for each channel."""

    def write(shape: Shape, g: torch.Generator) -> Linear:
        n, k = shape
        size = group or k
        half = 1 << (bits - 1)
        codes, s = draw(shape, -half, half, g), scales((n, -(-k // size)), k, half, torch.bfloat16, g)
        zeros = torch.zeros_like(s, dtype=torch.int64) if symmetric else draw(tuple(s.shape), -half, half, g)
        g_idx = torch.arange(k) // size
        if act_order:
            g_idx = g_idx[torch.randperm(k, generator=g)]
        weight = (codes - zeros[:, g_idx]).float() * s.float()[:, g_idx]
        tensors = {
            "weight_packed": into_words(codes + half, bits),
            "weight_scale": s,
            "weight_shape": torch.tensor(shape),
            **({"weight_g_idx": g_idx.to(torch.int32)} if act_order else {}),
        }
        if not symmetric:
            tensors["weight_zero_point"] = into_words((zeros + half).T.contiguous(), bits).T.contiguous()
        return Linear(tensors, weight)

    return write


def ct_int8(symmetric: bool = True) -> Writer:
    def write(shape: Shape, g: torch.Generator) -> Linear:
        n, k = shape
        codes, s = draw(shape, -128, 128, g), scales((n, 1), k, 128, torch.bfloat16, g)
        zeros = torch.zeros(n, 1, dtype=torch.int64) if symmetric else draw((n, 1), -120, 128, g)
        tensors = {"weight": codes.to(torch.int8), "weight_scale": s}
        if not symmetric:
            tensors["weight_zero_point"] = zeros.to(torch.int8)
        return Linear(tensors, (codes - zeros).float() * s.float())

    return write


def fp8_codes(shape: Shape, g: torch.Generator) -> Tensor:
    """Any finite e4m3 number."""
    bits = draw(shape, 0, 256, g)
    bits[(bits & 127) == 127] = 0
    return bits.to(torch.uint8).view(torch.float8_e4m3fn)


def fp8(
    name: str,
    block: Shape | None,
    dtype: torch.dtype = torch.float32,
    per_row: bool = False,
    more: tuple[str, ...] = (),
) -> Writer:
    """`name`: of the scales. `more`: scales of inputs, which no weight depends on."""

    def write(shape: Shape, g: torch.Generator) -> Linear:
        n, k = shape
        codes = fp8_codes(shape, g)
        blocks = block or ((1, k) if per_row else shape)
        grid = (-(-n // blocks[0]), -(-k // blocks[1]))
        s = scales(grid, k, 448, dtype, g)
        if dtype is torch.uint8:
            s = draw(grid, 100, 115, g).to(torch.uint8)
            wide = torch.exp2(s.float() - 127)
        else:
            wide = s.float()
        weight = codes.float() * spread(wide, *blocks, shape)
        stored = s if block or per_row else s.reshape(())
        return Linear({"weight": codes, name: stored, **{m: torch.tensor(0.1) for m in more}}, weight)

    return write


def mxfp4(data: str = "weight_packed", scale: str = "weight_scale") -> Writer:
    def write(shape: Shape, g: torch.Generator) -> Linear:
        n, k = shape
        codes, s = draw(shape, 0, 16, g), draw((n, k // 32), 115, 125, g)
        weight = E2M1[codes] * spread(torch.exp2(s.float() - 127), 1, 32, shape)
        return Linear({data: into_bytes(codes), scale: s.to(torch.uint8)}, weight)

    return write


def nvfp4(data: str, whole: str, divides: bool) -> Writer:
    def write(shape: Shape, g: torch.Generator) -> Linear:
        n, k = shape
        codes = draw(shape, 0, 16, g)
        s = (1 + 400 * torch.rand(n, k // 16, generator=g)).to(torch.float8_e4m3fn)
        factor = torch.tensor([2000.0 * k**0.5 if divides else 1 / (2000.0 * k**0.5)])
        wide = s.float() / factor if divides else s.float() * factor
        return Linear(
            {data: into_bytes(codes), "weight_scale": s, whole: factor}, E2M1[codes] * spread(wide, 1, 16, shape)
        )

    return write


def bnb_int8(shape: Shape, g: torch.Generator) -> Linear:
    codes = draw(shape, -127, 128, g).to(torch.int8)
    largest = 0.5 + torch.rand(shape[0], generator=g)
    tensors = {"weight": codes, "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return Linear(tensors, codes.float() * largest[:, None] / 127)


NF4 = [-1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0]
NF4 += [0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0]
FP4 = [0.0, 0.0052083333, 0.6666667, 1.0, 0.3333333, 0.5, 0.1666667, 0.25]
FP4 += [-value for value in FP4]


def bnb_4bit(kind: str, nested: bool) -> Writer:
    def write(shape: Shape, g: torch.Generator) -> Linear:
        count = shape[0] * shape[1]
        codes = draw((count,), 0, 16, g)
        blocks, table = -(-count // 64), torch.tensor(NF4 if kind == "nf4" else FP4)
        state: dict[str, Any] = {"quant_type": kind, "blocksize": 64, "dtype": "bfloat16", "shape": list(shape)}
        tensors = {"weight": into_bytes(codes, low_first=False)[:, None], "weight.quant_map": table}
        if nested:
            coded, of_blocks = draw((blocks,), 0, 256, g), 0.1 * torch.rand(-(-blocks // 256), generator=g)
            values = torch.linspace(-1, 1, 256)
            largest = values[coded] * of_blocks.repeat_interleave(256)[:blocks] + 0.125
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.125}
            tensors |= {"weight.absmax": coded.to(torch.uint8), "weight.nested_absmax": of_blocks}
            tensors["weight.nested_quant_map"] = values
        else:
            tensors["weight.absmax"] = largest = torch.rand(blocks, generator=g)
        said = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
        tensors[f"weight.quant_state.bitsandbytes__{kind}"] = said
        weight = table[codes] * largest.repeat_interleave(64)[:count]
        return Linear(tensors, weight.reshape(shape))

    return write


def ao_int4(symmetric: bool) -> Writer:
    def write(shape: Shape, g: torch.Generator) -> Linear:
        n, k = shape
        codes = draw(shape, -8, 8, g)
        s = scales((k // 64, n), k, 8, torch.bfloat16, g)
        zero = torch.zeros_like(s) if symmetric else (torch.randn(s.shape, generator=g) * 0.3 * k**-0.5).bfloat16()
        weight = codes.float() * spread(s.float().T, 1, 64, shape) + spread(zero.float().T, 1, 64, shape)
        tensors = {
            "_weight_qdata": into_bytes(codes & 15).view(torch.int8),
            "_weight_scale": s,
            "_weight_zero_point": zero,
        }
        made = {"_type": "Int4Tensor", "_data": {"block_size": [1, 64], "shape": list(shape)}}
        return Linear(tensors, weight, {**made, "_tensor_data_names": ["qdata", "scale", "zero_point"]})

    return write


def ao_intx(bits: int) -> Writer:
    def write(shape: Shape, g: torch.Generator) -> Linear:
        n, k = shape
        half = 1 << (bits - 1)
        codes, s = draw(shape, -half, half, g), scales((n, k // 32), k, half, torch.bfloat16, g)
        zeros = torch.zeros(n, k // 32, dtype=torch.int64) if bits == 4 else draw((n, k // 32), -100, 100, g)
        weight = (codes - spread(zeros, 1, 32, shape)).float() * spread(s.float(), 1, 32, shape)
        tensors = {"qdata": codes.to(torch.int8), "scale": s, "zero_point": zeros.to(torch.int8)}
        target = {"_type": "torch.dtype", "_data": f"int{bits}"}
        made = {"_type": "IntxUnpackedToInt8Tensor", "_data": {"block_size": [1, 32], "target_dtype": target}}
        named = {f"_weight_{name}": tensor for name, tensor in tensors.items()}
        return Linear(named, weight, {**made, "_tensor_data_names": list(tensors)})

    return write


def ao_rows(kind: str) -> Writer:
    """Int8Tensor and Float8Tensor with a scale to the row."""

    def write(shape: Shape, g: torch.Generator) -> Linear:
        n, k = shape
        codes = draw(shape, -128, 128, g).to(torch.int8) if kind == "Int8Tensor" else fp8_codes(shape, g)
        s = scales((n, 1), k, 128, torch.float32, g)
        made = {"_type": kind, "_data": {"block_size": [1, k]}, "_tensor_data_names": ["qdata", "scale"]}
        return Linear({"_weight_qdata": codes, "_weight_scale": s}, codes.float() * s, made)

    return write


def hqq(bits: int, axis: int) -> Writer:
    def write(shape: Shape, g: torch.Generator) -> Linear:
        n, k = shape
        count = n * k // 64
        codes = draw((count, 64) if axis == 1 else (64, count), 0, 1 << bits, g)
        beside = (count, 1) if axis == 1 else (1, count)
        s = scales(beside, k, 1 << (bits - 1), torch.float16, g)
        zero = ((1 << (bits - 1)) * (0.5 + torch.rand(beside, generator=g))).half()
        weight = ((codes.float() - zero.float()) * s.float()).reshape(shape)
        half = len(codes) // 2
        packed = codes if bits == 8 else (codes[:half] << 4) | codes[half:]
        numbers = {"nbits": bits, "group_size": 64, "axis": axis}
        tensors = {
            "W_q": packed.to(torch.uint8),
            "scale": s,
            "zero": zero,
            "shape": torch.tensor(shape),
            **{name: torch.tensor(value, dtype=torch.int32) for name, value in numbers.items()},
            **{name: torch.tensor(0, dtype=torch.uint8) for name in ("view_as_float", "quant_scale", "quant_zero")},
            "packing": torch.tensor(list(f"{bits}bit_u8".encode()), dtype=torch.uint8),
        }
        return Linear(tensors, weight)

    return write
