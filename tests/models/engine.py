"""Compiles a captured graph as a build does, and runs steps of it through the C ABI."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from llmc.codegen.cpu.model import BLOCK_TOKENS, Model, render
from llmc.codegen.toolchain import compile_library, find_toolchain
from llmc.codegen.weights import place_weights, stored
from llmc.compiler.ir.graph import Graph
from llmc.compiler.ir.ops.constant import Source, Weight
from llmc.compiler.ir.ops.kernel import Sample, Scheme
from llmc.compiler.ir.reference import Cache, run
from llmc.compiler.targets import find_target
from llmc.passes.pipeline import default_pipeline, run_pipeline
from llmc.passes.rewrite import RuleLog
from llmc.runtime.abi import LlmcConfig, LlmcStep, load_library

from .captured import read

Logits = npt.NDArray[np.float32]
MAX_TOKENS, MAX_SEQS, MAX_LEN, NUM_BLOCKS = 80, 6, 160, 40


class Reader:
    def read(self, source: Source, rows: tuple[int, int] | None) -> npt.NDArray[np.generic]:
        return read(source, rows)


@dataclass(frozen=True)
class Chunk:
    """Tokens of one sequence from position `start` on; `seq` names its blocks."""

    seq: int
    start: int
    ids: npt.NDArray[np.int32]


@dataclass(frozen=True)
class Built:
    """A compiled model with everything a step needs."""

    prefill: Graph
    decode: Graph
    model: Model
    library: ctypes.CDLL
    weights: npt.NDArray[np.uint8]
    vocab: int

    def session(self, threads: int = 1) -> Session:
        return Session(self, threads)


def build(graph: Graph, scheme: Scheme, folder: Path, name: str, group: int = 64) -> Built:
    """Pipeline, codegen, compiler: what `llmc build` does between capture and packaging."""
    entries = run_pipeline(graph, default_pipeline(scheme, group, _vocab(graph)), RuleLog(), lambda *_: None)
    placed = place_weights([n.op.expr for g in entries for n in g.nodes if isinstance(n.op, Weight)])
    model = render(name, "cpu", entries, {w.expr: w for w in placed}, _vocab(graph))
    path = folder / f"{name}.so"
    compile_library(model.sources, find_target("cpu"), path, find_toolchain({}))
    # exactly as long as the file's data: what reads beyond it is found by the page after it, or by its NaNs
    buffer = aligned(sum(w.num_bytes for w in placed))
    for weight in placed:
        at = weight.offset
        for piece in stored(weight.expr, Reader()):
            buffer[at : at + piece.nbytes] = piece
            at += piece.nbytes
    return Built(*entries, model, load_library(path), buffer, _vocab(graph))


def _vocab(graph: Graph) -> int:
    return int(str(graph.outputs[0].tensor.shape[-1]))


def aligned(num_bytes: int) -> npt.NDArray[np.uint8]:
    """Bytes that are NaN as floats, at a cache line."""
    whole = np.full(num_bytes + 4096, 0xFF, np.uint8)
    start = -whole.ctypes.data % 4096
    return whole[start : start + num_bytes]


class Session:
    """An engine of the library over a fresh KV pool."""

    def __init__(self, built: Built, threads: int) -> None:
        self.built = built
        self.pool = aligned(max(64, NUM_BLOCKS * built.library.llmc_kv_block_bytes()))
        config = LlmcConfig(
            weights=built.weights.ctypes.data,
            kv=self.pool.ctypes.data,
            num_blocks=NUM_BLOCKS,
            max_tokens=MAX_TOKENS,
            max_seqs=MAX_SEQS,
            max_rows=MAX_TOKENS,
            max_seq_len=MAX_LEN,
            num_threads=threads,
        )
        self.engine = built.library.llmc_create(ctypes.byref(config))
        assert self.engine

    def close(self) -> None:
        self.built.library.llmc_destroy(self.engine)

    def step(self, chunks: Sequence[Chunk], rows: Sequence[int] | None = None) -> Logits:
        """Logits [R, V] of some tokens of the step (all if None). One token of each sequence: the decode entry."""
        decode = rows is None and all(len(c.ids) == 1 for c in chunks)
        ids = np.concatenate([c.ids for c in chunks]).astype(np.int32)
        positions = np.concatenate([c.start + np.arange(len(c.ids)) for c in chunks]).astype(np.int32)
        starts = np.cumsum([0, *(len(c.ids) for c in chunks)]).astype(np.int32)
        stride = -(-MAX_LEN // BLOCK_TOKENS)
        # blocks of a sequence are scattered over the pool
        tables = np.array([[(c.seq * stride + i) * 7 % NUM_BLOCKS for i in range(stride)] for c in chunks], np.int32)
        wanted = np.arange(len(ids), dtype=np.int32) if rows is None else np.asarray(rows, np.int32)
        logits = np.full((len(wanted), self.built.vocab), np.nan, np.float32)
        arrays = {"token_ids": ids, "positions": positions, "seq_starts": starts, "block_tables": tables, "rows": wanted}
        step = LlmcStep(
            num_tokens=len(ids),
            num_seqs=len(chunks),
            num_rows=len(wanted),
            block_table_stride=stride,
            logits=logits.ctypes.data,
            **{name: a.ctypes.data for name, a in arrays.items()},
        )
        entry = self.built.library.llmc_decode if decode else self.built.library.llmc_prefill
        assert entry(self.engine, ctypes.byref(step)) == 0
        return logits


def expected(graph: Graph, ids: npt.NDArray[np.int32]) -> Logits:
    """Logits of every token of one sequence, by the interpreter on the graph of an entry."""
    places = np.arange(len(ids), dtype=np.int32)
    given: dict[str, object] = {"ids": ids, "positions": places, "seqs": np.zeros_like(places), "kv": Cache(), "rows": places}
    with np.errstate(all="ignore"):
        return np.asarray(run(graph, given, read)[0], np.float32)
