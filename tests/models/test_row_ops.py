"""Generated row kernels against the interpreter: every row-wise op, edge values, tails, layouts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from llmc.codegen.cpu.rows_kernel import write_rows
from llmc.ir.formats import Scheme
from llmc.ir.graph import Graph, IRError
from llmc.ir.ops.kernel import Rows as RowsOp
from llmc.ir.parser import parse

from .captured import EDGES
from .engine import Built, Chunk, Logits, compiled, expected, lowered, side_by_side
from .row_ops import sections

IDS = (np.arange(70) % len(EDGES)).astype(np.int32)
SECTIONS = sections()
NAMES = [name for section in SECTIONS for name in section.names]


@dataclass(frozen=True)
class Outcome:
    built: Built
    found: Logits
    want: Logits


@pytest.fixture(scope="module")
def outcome(library_folder: Path) -> Outcome:
    entries = side_by_side([lowered(section.finish(), Scheme.F32) for section in SECTIONS])
    built = compiled(entries, library_folder, "row-ops")
    return Outcome(built, run(built, [Chunk(0, 0, IDS)]), expected(built.prefill, IDS))


def run(built: Built, chunks: list[Chunk], threads: int = 1) -> Logits:
    session = built.session(threads)
    logits = session.step(chunks)
    session.close()
    return logits


@pytest.mark.parametrize("name", sorted(set(NAMES)))
def test_op(outcome: Outcome, name: str) -> None:
    """float32 to a few roundings; an infinity, a NaN and a sign of infinity exactly where the interpreter has them."""
    columns = np.array([n == name for n in NAMES])
    found, want = outcome.found[:, columns], outcome.want[:, columns]
    finite = np.isfinite(want)
    assert np.array_equal(found[~finite], want[~finite], equal_nan=True)
    assert np.allclose(found[finite], want[finite], rtol=2e-6, atol=2e-6)


def test_no_column_is_constant_garbage(outcome: Outcome) -> None:
    assert outcome.found.shape == (len(IDS), len(NAMES))
    for graph in (outcome.built.prefill, outcome.built.decode):
        assert sum(isinstance(n.op, RowsOp) for n in graph.nodes) > len(SECTIONS)


@pytest.mark.parametrize("m", [1, 2, 3, 7, 16, 33, 70])
@pytest.mark.parametrize("threads", [1, 3])
def test_rows_do_not_depend_on_their_number(outcome: Outcome, m: int, threads: int) -> None:
    assert run(outcome.built, [Chunk(0, 0, IDS[:m])], threads).tobytes() == outcome.found[:m].tobytes()


def test_decode_gives_the_same_rows(outcome: Outcome) -> None:
    session = outcome.built.session(2)
    for t in range(0, 70, 9):
        assert session.step([Chunk(0, t, IDS[t : t + 1])]).tobytes() == outcome.found[t : t + 1].tobytes()
    session.close()


def body(text: str) -> Graph:
    return parse(f"graph rows {{\n dims R in [1, inf], T in [1, inf]\n{text}\n}}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("inputs %x: f32[T, 4]\n%y = cast{dtype=f16}(%x) : f16[T, 4]\noutputs %y", "f16"),
        (
            "inputs %x: bf16[T, 4]\n%y = cast{dtype=f32}(%x) : f32[T, 4]\noutputs %y",
            r"no code reads %x of bf16\[T, 4\]",
        ),
        ("inputs %x: i32[T, 4]\n%y = cast{dtype=f32}(%x) : f32[T, 4]\noutputs %y", "integers are one to a row"),
        (
            "inputs %x: i32[4], %z: f32[T, 4]\n%y = cast{dtype=f32}(%x) : f32[4]\n"
            "%w = binary{fn=add}(%y, %z) : f32[T, 4]\noutputs %w",
            "integers are one to a row",
        ),
        (
            "inputs %x: i32[T]\n%y = binary{fn=div}(%x, %x) : i32[T]\noutputs %y",
            "on integers at no module has no CPU code",
        ),
        ("inputs %x: f32[T, 4]\n%y = cast{dtype=i32}(%x) : i32[T, 4]\noutputs %y", "is not an integer of the row"),
        (
            "inputs %x: f32[T, 4], %r: i32[R], %z: f32[T, 4]\n%a = gather_rows(%x, %r) : f32[R, 4]\n"
            "%b = binary{fn=add}(%x, %z) : f32[T, 4]\noutputs %a, %b",
            "read both whole and gathered",
        ),
        ("inputs %x: f32[T, 2, 4], %w: f32[4, 4]\n%y = linear(%x, %w) : f32[T, 2, 4]\noutputs %y", "has no CPU code"),
        (
            "inputs %x: f32[T, 4]\n%y = cast{dtype=bf16}(%x) : bf16[T, 4]\n"
            "%z = cast{dtype=f32}(%y) : f32[T, 4]\noutputs %z",
            "is not an operand of a linear",
        ),
    ],
)
def test_what_has_no_code_is_refused(text: str, message: str) -> None:
    with pytest.raises(IRError, match=message):
        write_rows(body(text))
