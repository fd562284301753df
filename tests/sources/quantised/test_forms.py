"""Every row of docs/formats.md: read back by rows, bound to a module, computed as transformers does with its floats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from llmc.compiler.capture.capture import import_program
from llmc.compiler.capture.export import Exported, export, meta_model
from llmc.compiler.capture.parameters import bind
from llmc.compiler.sources.checkpoint import QuantisedTensor
from llmc.compiler.sources.published import HUGGINGFACE, Published
from llmc.compiler.sources.resolve import open_source
from llmc.ir.formats import Scheme
from llmc.ir.ops.constant import Origin, Source
from llmc.ir.ops.reduce import Linear
from llmc.ir.reference import run
from llmc.passes.choose_formats import ChooseFormats
from llmc.passes.rewrite import RuleLog
from tests.sources.quantised.folders import config, write
from tests.sources.quantised.forms import FORMS
from tests.tiny_models import example, hf_logits, relative_error

READ = [row for row in HUGGINGFACE if not row.refused and row.source != "MXFP4"]


@pytest.fixture(scope="module")
def exported() -> Exported:
    return export(meta_model(config()))


def test_every_format_that_is_read_is_written_here() -> None:
    assert {(row.source, row.form) for row in READ} == set(FORMS)


@pytest.mark.parametrize("row", READ, ids=lambda row: f"{row.source} {row.form}")
def test_a_format_is_read_exactly(tmp_path: Path, row: Published, exported: Exported) -> None:
    written = write(tmp_path / "model", FORMS[row.source, row.form])
    source = open_source(str(written.folder))
    checkpoint = source.checkpoint(exported.model)
    for path, linear in written.linears.items():
        tensor = checkpoint[f"{path}.weight"]
        found, expected = tensor.read_f32(), linear.weight.numpy()
        assert np.abs(found - expected).max() <= 2.0**-22 * np.abs(expected).max()
        np.testing.assert_array_equal(tensor.read_f32((3, 20)), found[3:20])
        assert (tensor.numbers if isinstance(tensor, QuantisedTensor) else None) == row.numbers
    notices = [n for n in source.notices if "read as floats" in n]
    assert len(notices) == (row.numbers is None) and all(row.instead in n for n in notices)

    graph, buffers = import_program(exported, bind(exported.model, checkpoint))

    def read(leaf: Source) -> np.ndarray:
        if leaf.origin is Origin.BUFFER:
            return buffers[leaf.name]
        tensor = checkpoint[leaf.name]
        return tensor.read_f32() if leaf.part is None else tensor.read_part(leaf.part)  # type: ignore[union-attr]

    ids, positions = example(1, 9)
    (logits,) = run(graph, {"ids": ids, "positions": positions}, read)
    assert relative_error(np.asarray(logits), hf_logits(written.model, ids, positions)) < 1e-4
    chosen = ChooseFormats(Scheme.BF16, as_stored=True).run(graph, RuleLog())
    schemes = {node.op.scheme for node in chosen.nodes if isinstance(node.op, Linear) and node.loc != "lm_head"}
    assert schemes == {Scheme.BF16 if row.numbers is None else Scheme.of(row.numbers)}
