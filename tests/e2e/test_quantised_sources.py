"""Engines of quantised checkpoints, in the numbers that these store, against transformers with what they stand for.

Weights are exact: what is left is that inputs are rounded to int8 in groups, or to bf16.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmc.compiler.build import BuildError, BuildOptions, build
from llmc.compiler.sources.resolve import open_source
from llmc.compiler.verify.reference import reference_model
from llmc.ir.formats import Scheme
from llmc.runtime import Engine
from tests.e2e.engines import Engines, Silent
from tests.sources.quantised import written as w
from tests.sources.quantised.folders import Written, write
from tests.sources.quantised.forms import FORMS, ct
from tests.sources.quantised.written import Form, Writer
from tests.tiny_models import example, hf_logits, relative_error

LENGTH = 40
TOLERANCE = 8 / 127  # a few steps of int8, of the largest in a group


def _compressed() -> tuple[Form, dict[str, Writer]]:
    """A format for each linear of a layer."""
    by_group = {"strategy": "group", "group_size": 64}
    groups: dict[str, tuple[dict[str, Any], Writer]] = {
        "q_proj": ({"num_bits": 4, **by_group}, w.ct_packed()),
        "k_proj": ({"num_bits": 4, **by_group, "symmetric": False}, w.ct_packed(symmetric=False)),
        "v_proj": ({"num_bits": 8, "strategy": "channel"}, w.ct_int8()),
        "o_proj": ({"num_bits": 8, "type": "float", "strategy": "channel"}, w.fp8("weight_scale", None, per_row=True)),
        "gate_proj": (
            {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
            w.nvfp4("weight_packed", "weight_global_scale", divides=True),
        ),
        "up_proj": ({"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}, w.mxfp4()),
        "down_proj": (
            {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]},
            w.fp8("weight_scale", (128, 128)),
        ),
    }
    settings = ct("mixed-precision")
    settings["config_groups"] = {
        name: ct("mixed-precision", [f"re:.*{name}"], **weights)["config_groups"]["group_0"]
        for name, (weights, _) in groups.items()
    }
    return Form(settings, w.ct_packed()), {name: writer for name, (_, writer) in groups.items()}


def _gptq() -> tuple[Form, dict[str, Writer]]:
    """4 bits with zero points; 8 bits in down_proj, whose 192 columns are a group and a half."""
    form = FORMS["GPTQ", "4 bits, zero points"]
    settings = {**form.settings, "dynamic": {".*down_proj": {"bits": 8}}}
    return Form(settings, form.write), {"down_proj": w.gptq(8, symmetric=False)}


def _hqq() -> tuple[Form, dict[str, Writer]]:
    return FORMS["HQQ", "4 bits"], {}


SOURCES = {"compressed-tensors": _compressed, "gptq": _gptq, "hqq": _hqq}
SCHEMES = {
    "compressed-tensors": {"int4g64b", "int4g64zb", "int8", "fp8", "nvfp4f", "mxfp4", "fp8g128f", "bf16"},
    "gptq": {"int4g128z", "int8g128z", "bf16"},
    "hqq": {"int4g64mf", "bf16"},
}


@pytest.mark.parametrize("name", SOURCES)
def test_an_engine_in_the_numbers_of_its_source(name: str, engines: Engines, tmp_path: Path) -> None:
    form, writers = SOURCES[name]()
    written = write(tmp_path / name, form, writers=writers)
    out = tmp_path / "engine"
    build(BuildOptions(str(written.folder), out, as_stored=True, max_batch=2, step_tokens=48), Silent())
    ids, positions = example(1, LENGTH)
    expected = hf_logits(written.model, ids, positions)[0]
    with Engine.load(out, max_rows=LENGTH, threads=2) as engine:
        found = engine.logits(ids[0].tolist())
        assert relative_error(found, expected) < TOLERANCE
        assert np.array_equal(engine.logits(ids[0].tolist(), chunks=[1, 2, 20, 17]), found)
    report = json.loads((out / "report.json").read_text())
    kernels = {kernel["of"] for kernel in report["targets"]["cpu"]["kernels"]}
    assert kernels == {f"linears in {scheme}" for scheme in SCHEMES[name]}
    assert report["model"]["stored_as"].startswith(("compressed-tensors: ", "GPTQ: ", "HQQ: "))


def test_the_reference_of_a_quantised_folder_has_the_weights_that_it_stands_for(tmp_path: Path) -> None:
    written = write(tmp_path / "model", FORMS["GPTQ", "act order"])
    found = reference_model(open_source(str(written.folder))).state_dict()
    for name, expected in written.model.state_dict().items():
        np.testing.assert_allclose(found[name].numpy(), expected.numpy(), rtol=1e-6)


def test_a_target_without_kernels_for_what_is_stored_says_what_to_do(tmp_path: Path) -> None:
    written: Written = write(tmp_path / "model", FORMS["AWQ", "4 bits, gemm"])
    options = BuildOptions(str(written.folder), tmp_path / "engine", target="h100", as_stored=True)
    with pytest.raises(
        BuildError, match=r"target h100: no CUDA kernel multiplies in int4g128z: use bf16, f16; a --dtype"
    ):
        build(options, Silent())
    assert not (tmp_path / "engine").exists()
    assert options.scheme is Scheme.BF16
