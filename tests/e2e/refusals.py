"""A refusal: exit code 2, one line on stderr that names the thing (after those of stages begun), nothing on stdout."""

from __future__ import annotations

from tests.e2e.commands import Ended

MAIN = "from llmc.compiler.commands.cli import main; main(sys.argv[1:], 'llmc')"

STAGES = (
    "loading torch and transformers",
    "reading the model",
    "capturing the graph",
    "optimising",
    "predicting",
    "generating kernels",
    "compiling kernels for cpu",
    "compiling kernels with marks",
    "loading the engine",
    "comparing texts",
    "loading the reference",
    "comparing logits",
)  # which a build, a verification or a prediction that was refused had begun


def refused(ended: Ended, *expected: str, at_once: bool = False) -> None:
    """`at_once`: before anything large is imported and the model is read."""
    assert ended.code == 2, ended
    assert ended.stdout == ""
    *stages, line = ended.stderr.splitlines()
    assert ended.stderr.endswith("\n") and not set(stages) - set(STAGES), ended.stderr
    assert line.startswith("llmc: ")
    assert not (at_once and stages)
    for text in expected:
        assert text in line
