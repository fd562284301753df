"""What the blocks of each attention launch move and compute: the grids and splits of codegen/cuda/attention/forms.py.

Keys and values cross the memory bus once; a tile of prefill reads them again out of L2. Queries and results cross it
where L2 does not hold all of them, and so does what decode leaves for combine, written and read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from llmc.codegen.cuda.attention.layer import Layer
from llmc.codegen.cuda.attention.params import (
    PREFILL_ROWS,
    AttentionParams,
    CombineAttentionParams,
    DecodeAttentionParams,
    PrefillAttentionParams,
)
from llmc.codegen.cuda.cost.launches import BlockWork, LaunchWork
from llmc.codegen.cuda.kernel import LOOP_LOADS
from llmc.codegen.cuda.plan.kv import KV_BLOCK
from llmc.codegen.cuda.target.assumptions import ASSUMED
from llmc.codegen.cuda.target.gpus import Gpu
from llmc.codegen.packing import round_up
from llmc.codegen.work import SOFTCAP_FLOPS, SOFTMAX_FLOPS, Step, first_key
from llmc.ir.ops.attention import Mask

NOTHING = LaunchWork((), 0)


@dataclass(frozen=True)
class Rates:
    """Operations per second of one multiprocessor that attention reaches."""

    matrix: float
    vector: float

    def seconds(self, layer: Layer, rows: int, keys: int, columns: int) -> float:
        """Scores of `rows` queries for `keys`, and `columns` of their values."""
        products = 2 * rows * keys * (layer.slot.padded_head_dim + columns)
        softmax = rows * keys * (SOFTMAX_FLOPS + (SOFTCAP_FLOPS if layer.softcap else 0))
        return max(products / self.matrix, softmax / self.vector)


@cache
def attention_work(p: AttentionParams, mask: Mask, step: Step, gpu: Gpu, rates: Rates, activations: int) -> LaunchWork:
    """The blocks of one launch that find work in this step: decode takes single tokens; where it stands beside prefill,
    prefill takes the others. `activations`: bytes of all queries and results."""
    single, near = step.new == 1, activations <= gpu.l2_bytes
    match p:
        case PrefillAttentionParams():
            return _prefill(p, mask, step, rates, activations, near) if step.new >= p.min_tokens else NOTHING
        case DecodeAttentionParams():
            return _decode(p, mask, step, gpu, rates, near) if single else NOTHING
        case CombineAttentionParams():
            return _combine(p, mask, step, gpu, near) if single else NOTHING


def workspace_bytes(layer: Layer, mask: Mask, step: Step) -> int:
    """That decode leaves for combine."""
    return step.seqs * layer.q_heads * len(_splits(layer, mask, step.past)) * layer.split_bytes


def _splits(layer: Layer, mask: Mask, at: int) -> list[int]:
    """Keys that the query at a position sees in each split."""
    first, found = first_key(mask, at), []
    for start in range(first // layer.split * layer.split, at + 1, layer.split):
        found.append(min(at + 1, start + layer.split) - max(first, start))
    return found


def _decode(p: DecodeAttentionParams, mask: Mask, step: Step, gpu: Gpu, rates: Rates, near: bool) -> LaunchWork:
    a = p.layer
    query, left = a.group * a.slot.padded_head_dim * 2, a.group * a.split_bytes
    stays = workspace_bytes(a, mask, step) <= gpu.l2_bytes
    runs = []
    for keys in _splits(a, mask, step.past):
        cached = keys * (a.head_dim + a.value_dim) * 2
        seconds = rates.seconds(a, p.row_tiles * 16, round_up(keys, KV_BLOCK), a.slot.padded_value_dim)
        far = cached + left * (not stays) + query * (not near)
        work = BlockWork(far, cached + left + query - far, seconds)
        runs.append((step.seqs * a.kv_heads, work))
    return LaunchWork(tuple(runs), a.tile_bytes)


def _combine(p: CombineAttentionParams, mask: Mask, step: Step, gpu: Gpu, near: bool) -> LaunchWork:
    a, written = p.layer, p.layer.value_dim * p.result.num_bytes
    read = len(_splits(a, mask, step.past)) * a.split_bytes
    stays = workspace_bytes(a, mask, step) <= gpu.l2_bytes
    work = BlockWork(read * (not stays) + written * (not near), read * stays + written * near, 0.0)
    return LaunchWork(((step.seqs * a.q_heads, work),), p.threads * 4 * LOOP_LOADS)


def _prefill(
    p: PrefillAttentionParams, mask: Mask, step: Step, rates: Rates, activations: int, near: bool
) -> LaunchWork:
    """The longest contexts start first; heads, and parts of wide values, one after the other."""
    a = p.layer
    columns = p.part_steps * 16
    per_key = (a.slot.padded_head_dim + columns) * 2
    tiles = [(sum(t.keys for t in tile), sum(t.scored for t in tile)) for tile in _tiles(a.group, mask, step)]
    blocks = len(tiles) * a.kv_heads * p.parts
    stored = step.seqs * (step.past + step.new - first_key(mask, step.past)) * (a.head_dim + a.value_dim) * 2
    first = stored / p.parts / sum(keys for keys, _ in tiles)  # of a key's bytes, those which no other block has loaded
    rows = activations / blocks
    work = []
    for keys, scored in reversed(tiles):
        far = keys * first + rows * (not near)
        work.append((1, BlockWork(far, keys * per_key + rows - far, rates.seconds(a, PREFILL_ROWS, scored, columns))))
    return LaunchWork(tuple(work) * (a.kv_heads * p.parts), a.split * per_key)


@dataclass(frozen=True)
class _Stretch:
    """What a tile has of one sequence: keys that its tokens see, and those that it computes scores of."""

    keys: int
    scored: int


def _tiles(group: int, mask: Mask, step: Step) -> Iterator[list[_Stretch]]:
    """Of PREFILL_ROWS rows, `group` of them to a token, over all tokens of a step."""
    rows = step.tokens * group
    for start in range(0, rows, PREFILL_ROWS):
        begin, end = start // group, min(step.tokens, (start + PREFILL_ROWS - 1) // group + 1)
        found = []
        for seq in range(begin // step.new, (end - 1) // step.new + 1):
            low = max(begin - seq * step.new, 0) + step.past
            last = min(end - seq * step.new, step.new) - 1 + step.past
            first = first_key(mask, low)
            scored = round_up(last + 1, KV_BLOCK) - first // KV_BLOCK * KV_BLOCK
            found.append(_Stretch(last + 1 - first, scored))
        yield found


def rates_of(matrix: float, vector: float, gpu: Gpu) -> Rates:
    """From a GPU's rates: operations per second that mma.sync and the vector units can reach."""
    return Rates(matrix * ASSUMED.attention / gpu.sms, vector * ASSUMED.vector / gpu.sms)
