"""Compiles a captured graph as a build does, and runs steps of it through the C ABI."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from llmc.codegen.cpu.model import Model, render
from llmc.codegen.cpu.target import cpu_target
from llmc.codegen.cpu.toolchain import compile_library, find_toolchain
from llmc.codegen.kv_groups import BLOCK_TOKENS
from llmc.codegen.weights import place_weights, stored
from llmc.ir.formats import Scheme
from llmc.ir.graph import Builder, Graph, Node, Value
from llmc.ir.ops.constant import Source, Weight
from llmc.ir.ops.kernel import Rows, Sample
from llmc.ir.ops.shape import Concat
from llmc.ir.reference import Cache, run
from llmc.ir.verify import verify
from llmc.passes.pipeline import default_pipeline, run_pipeline
from llmc.passes.rewrite import RuleLog
from llmc.runtime.cpu.library import LlmcConfig, LlmcKvPool, LlmcStep, load_library
from llmc.runtime.kv.blocks import NO_BLOCK
from llmc.runtime.kv.retention import Retention

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

    def session(self, threads: int = 1, keep: bool = False) -> Session:
        return Session(self, threads, keep)


def build(graph: Graph, scheme: Scheme, folder: Path, name: str) -> Built:
    """Pipeline, codegen, compiler: what `llmc build` does between capture and packaging."""
    return compiled(lowered(graph, scheme), folder, name)


def lowered(graph: Graph, scheme: Scheme) -> list[Graph]:
    vocab = int(str(graph.outputs[0].tensor.shape[-1]))
    return run_pipeline(graph, default_pipeline(scheme, vocab), RuleLog(), lambda *_: None)


def compiled(entries: list[Graph], folder: Path, name: str) -> Built:
    """The library of two entries. Workers of pytest-xdist share `folder`, and build each content once."""
    vocab = int(str(entries[0].outputs[0].tensor.shape[-1]))
    placed = place_weights([n.op.expr for g in entries for n in g.nodes if isinstance(n.op, Weight)])
    model = render(name, "cpu", entries, {w.expr: w for w in placed}, vocab)
    target, toolchain = cpu_target("cpu"), find_toolchain({})
    content = repr((sorted(model.sources.items()), target, toolchain))
    path = folder / f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:16]}.so"
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            private = path.with_suffix(".partial")
            compile_library(model.sources, target, private, toolchain)
            private.replace(path)
    # exactly as long as the file's data, then NaNs: what reads beyond it is found
    buffer = aligned(sum(w.num_bytes for w in placed))
    for weight in placed:
        at = weight.offset
        for piece in stored(weight.expr, Reader()):
            buffer[at : at + piece.nbytes] = piece
            at += piece.nbytes
    with path.open("rb") as file:
        library = load_library(file)
    return Built(*entries, model, library, buffer, vocab)


def side_by_side(graphs: list[list[Graph]]) -> list[Graph]:
    """Entries of models without attention joined into one: its logits are all of theirs in one row."""
    return [_joined([entries[i] for entries in graphs]) for i in range(2)]


def _joined(parts: list[Graph]) -> Graph:
    inputs = {v.name: v for v in parts[0].inputs}
    nodes: list[Node] = []
    for part in parts:
        shared = {v: inputs[v.name] for v in part.inputs}
        nodes += [
            Node(n.op, tuple(shared.get(v, v) for v in n.inputs), n.outputs, n.loc)
            for n in part.nodes
            if not isinstance(n.op, Sample)
        ]
    results = tuple(part.outputs[0] for part in parts)
    body, b = Builder(), Builder()
    inside = tuple(Value(v.type, v.name) for v in results)
    joined = body.add(Concat(1), *inside)
    logits = b.add(Rows(Graph("rows", inside, (joined,), tuple(body.nodes))), *results, name="logits")
    tokens = b.add(Sample(int(str(logits.tensor.shape[1]))), logits)
    cache = inputs["kv"]
    graph = Graph(parts[0].name, tuple(inputs.values()), (logits, tokens, cache), (*nodes, *b.nodes))
    verify(graph)
    return graph


def aligned(num_bytes: int) -> npt.NDArray[np.uint8]:
    """Bytes that are NaN as floats, at a cache line."""
    whole = np.full(num_bytes + 4096, 0xFF, np.uint8)
    start = -whole.ctypes.data % 4096
    return whole[start : start + num_bytes]


class GuardedPool:
    """Blocks that are NaN as floats; the bytes of the block before the first cannot be read or written."""

    def __init__(self, num_blocks: int, block_bytes: int) -> None:
        guard = -(-block_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.memory = mmap.mmap(-1, guard + num_blocks * block_bytes)
        whole = np.frombuffer(self.memory, np.uint8)
        whole[:] = 0xFF
        self.address = whole.ctypes.data + guard
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(whole.ctypes.data), ctypes.c_size_t(guard), 0):  # PROT_NONE
            raise OSError(ctypes.get_errno(), "mprotect")


class Session:
    """An engine of the library over fresh KV pools.

    Tables hold NO_BLOCK wherever a group's window has passed, and pages that cannot be touched lie where such a block
    would be: a step that read one would end the process. `keep`: nothing is ever given back instead.
    """

    def __init__(self, built: Built, threads: int, keep: bool = False) -> None:
        self.built = built
        windows = [None if keep else group.window for group in built.model.kv.groups]
        self.retentions = [Retention(window, BLOCK_TOKENS, MAX_TOKENS) for window in windows]
        sizes = [built.library.llmc_kv_block_bytes(g) for g in range(built.library.llmc_kv_groups())]
        assert sizes == [group.block_bytes for group in built.model.kv.groups]
        self.pools = [GuardedPool(NUM_BLOCKS, size) for size in sizes]
        config = LlmcConfig(
            weights=built.weights.ctypes.data,
            kv=(LlmcKvPool * len(sizes))(*(LlmcKvPool(pool.address, NUM_BLOCKS) for pool in self.pools)),
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

    def tables(self, chunks: Sequence[Chunk]) -> npt.NDArray[np.int32]:
        """[groups, MAX_SEQS, stride]: the blocks of a sequence are scattered over each pool."""
        stride = -(-MAX_LEN // BLOCK_TOKENS)
        tables = np.full((len(self.retentions), MAX_SEQS, stride), NO_BLOCK, np.int32)
        for group, retention in enumerate(self.retentions):
            for row, chunk in enumerate(chunks):
                for i in range(retention.first_kept(chunk.start), stride):
                    tables[group, row, i] = ((chunk.seq * stride + i) * 7 + group) % NUM_BLOCKS
        return tables

    def step(
        self,
        chunks: Sequence[Chunk],
        rows: Sequence[int] | None = None,
        tables: npt.NDArray[np.int32] | None = None,
    ) -> Logits:
        """Logits [R, V] of some tokens of the step (all if None). One token of each sequence: the decode entry."""
        decode = rows is None and all(len(c.ids) == 1 for c in chunks)
        ids = np.concatenate([c.ids for c in chunks]).astype(np.int32)
        positions = np.concatenate([c.start + np.arange(len(c.ids)) for c in chunks]).astype(np.int32)
        starts = np.cumsum([0, *(len(c.ids) for c in chunks)]).astype(np.int32)
        tables = self.tables(chunks) if tables is None else tables
        wanted = np.arange(len(ids), dtype=np.int32) if rows is None else np.asarray(rows, np.int32)
        logits = np.full((len(wanted), self.built.vocab), np.nan, np.float32)
        arrays = {
            "token_ids": ids,
            "positions": positions,
            "seq_starts": starts,
            "block_tables": tables,
            "rows": wanted,
        }
        step = LlmcStep(
            num_tokens=len(ids),
            num_seqs=len(chunks),
            num_rows=len(wanted),
            block_table_stride=tables.shape[2],
            logits=logits.ctypes.data,
            **{name: a.ctypes.data for name, a in arrays.items()},
        )
        entry = self.built.library.llmc_decode if decode else self.built.library.llmc_prefill
        assert entry(self.engine, ctypes.byref(step)) == 0
        return logits


def expected(graph: Graph, ids: npt.NDArray[np.int32]) -> Logits:
    """Logits of every token of one sequence, by the interpreter on the graph of an entry."""
    places = np.arange(len(ids), dtype=np.int32)
    given: dict[str, object] = {
        "ids": ids,
        "positions": places,
        "seqs": np.zeros_like(places),
        "kv": Cache(),
        "rows": places,
    }
    with np.errstate(all="ignore"):
        return np.asarray(run(graph, given, read)[0], np.float32)
