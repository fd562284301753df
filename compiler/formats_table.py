"""The table of docs/formats.md: what becomes of each published format on each target, as builds decide it.

python -m llmc.compiler.formats_table docs/formats.md     # writes it between the file's two marks
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from llmc.codegen.cuda.target.gpus import GPUS
from llmc.compiler.sources.published import GGUF, HUGGINGFACE, Published
from llmc.compiler.sources.quantised.methods import REFUSED
from llmc.compiler.targets.backend import Backend
from llmc.compiler.targets.find import find_target
from llmc.ir.formats import Scheme

BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
TARGETS = (
    *("generic", "x86-64-v3", "x86-64-v4", "x86-64-v4+vnni", "x86-64-v4+vnni+bf16+amx"),
    *("aarch64", "aarch64+dotprod+i8mm", *GPUS),
)


def rows() -> tuple[Published, ...]:
    """Of HuggingFace's folders, the methods that are refused, and GGUF files."""
    others = (Published(name, "", None, why, refused=True) for name, why in REFUSED.items())
    return (*HUGGINGFACE, *others, *GGUF)


def cell(published: Published, target: Backend) -> str:
    """What a build without --dtype does."""
    if published.refused:
        return "refused"
    if published.numbers is None:
        return "rounded"
    return "exact" if target.refuses(Scheme.of(published.numbers)) is None else "no kernel"


def table() -> str:
    """In Markdown; neighbouring targets that do the same with every row share a column."""
    targets = [find_target(name) for name in TARGETS]
    columns = [[cell(row, target) for row in rows()] for target in targets]
    shown = [i for i in range(len(TARGETS)) if i == 0 or columns[i] != columns[i - 1]]
    titles = [_together(TARGETS[i:j]) for i, j in zip(shown, [*shown[1:], len(TARGETS)], strict=True)]
    lines = ["| source | format | kept as | " + " | ".join(titles) + " |", "|---" * (3 + len(titles)) + "|"]
    for number, row in enumerate(rows()):
        kept = f"`{Scheme.of(row.numbers)}`" if row.numbers else row.instead
        lines.append(f"| {row.source} | {row.form} | {kept} | {' | '.join(columns[i][number] for i in shown)} |")
    return "\n".join([*lines, "", *_counts(columns)])


def _together(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"


def _counts(columns: Sequence[Sequence[str]]) -> Iterator[str]:
    cells = [cell for column in columns for cell in column]
    kinds = ", ".join(f"{cells.count(kind)} {kind}" for kind in ("exact", "rounded", "no kernel", "refused"))
    yield f"{len(rows())} formats on {len(TARGETS)} targets: {kinds}."


def in_text(text: str) -> str:
    """A document with the table between its marks. ValueError where it has none."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"expected {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    document = Path(sys.argv[1])
    document.write_text(in_text(document.read_text()))
