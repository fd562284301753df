"""Which modules are quantised, and in what: the file itself shows it, module by module."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from llmc.compiler.capture.capture import Captured, capture
from llmc.compiler.sources.checkpoint import QuantisedTensor
from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.quantised.patterns import named_by
from llmc.compiler.sources.resolve import open_source
from llmc.ir.formats import Numbers, Part, Scheme
from llmc.ir.ops.constant import Apply, Quantize, Source, Weight, WeightExpr
from llmc.ir.ops.kernel import PackedLinear
from llmc.ir.reference import run
from llmc.ir.types import DType
from llmc.passes.pipeline import default_pipeline, run_pipeline
from llmc.passes.rewrite import RuleLog
from tests.sources.quantised import written as w
from tests.sources.quantised.folders import Written, write
from tests.sources.quantised.forms import FORMS, ct
from tests.sources.quantised.written import Form
from tests.tiny_models import config_of, eager_model, example, hf_logits, relative_error

GPTQ = FORMS["GPTQ", "4 bits, zero points"]
INT4Z = Numbers(DType.U4, 128, DType.F16, DType.I8)
LAYER = "model.layers.0."


def quantised(folder: Path) -> dict[str, Numbers]:
    """Of each module that is stored quantised, by the last part of its path."""
    tensors = open_source(str(folder)).checkpoint(torch.nn.Module()).tensors.items()  # type: ignore[arg-type]
    return {name.split(".")[-2]: t.numbers for name, t in tensors if isinstance(t, QuantisedTensor)}


def same_logits(written: Written) -> Captured:
    captured = capture(open_source(str(written.folder)))
    ids, positions = example(1, 7)
    (logits,) = run(captured.graph, {"ids": ids, "positions": positions}, captured.read)
    assert relative_error(np.asarray(logits), hf_logits(written.model, ids, positions)) < 1e-4
    return captured


LINEARS = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


@pytest.mark.parametrize(
    ("listed", "floats"),
    [
        (["q_proj"], {"q_proj"}),
        (["qkv_proj"], {"q_proj", "k_proj", "v_proj"}),
        (["model.layers.0.self_attn"], {"q_proj", "k_proj", "v_proj", "o_proj"}),
        (["re:.*gate.*"], {"gate_proj"}),
        (["*.mlp.*"], {"gate_proj", "up_proj", "down_proj"}),
        (["mlp.gate"], set()),  # another module, of models with experts: not gate_proj
        ([], set()),
    ],
)
def test_what_a_list_leaves_out_stays_floats_and_nothing_else(
    tmp_path: Path, listed: list[str], floats: set[str]
) -> None:
    settings = {**FORMS["AWQ", "4 bits, gemm"].settings, "modules_to_not_convert": [*listed, "lm_head"]}
    form = Form(settings, FORMS["AWQ", "4 bits, gemm"].write)
    written = write(tmp_path / "model", form, skip=lambda path: path.split(".")[-1] in floats | {"lm_head"})
    found = quantised(written.folder)
    assert set(found) == LINEARS - floats and set(found.values()) == {INT4Z}
    assert open_source(str(written.folder)).notices == ()


def test_where_a_list_and_the_file_differ_the_file_counts_and_a_notice_says_so(tmp_path: Path) -> None:
    settings = {**GPTQ.settings, "modules_to_not_convert": ["q_proj", "lm_head"]}
    written = write(tmp_path / "model", GPTQ, settings=settings)
    assert set(quantised(written.folder)) == LINEARS
    (notice,) = open_source(str(written.folder)).notices
    assert "'q_proj' leaves out model.layers.0.self_attn.q_proj, which is stored quantised" in notice


def test_names_of_lists() -> None:
    path = "model.layers.1.mlp.gate_proj"
    means = ("gate_proj", "model.layers.1", path, "re:model.*gate", "*.gate_*", "mlp.gate_proj")
    assert [named_by(path, [name]) for name in means] == list(means)
    for name in ("gate", "layers.1", "model.layers.11", "mlp.gate", "model.layer", "proj", "re:gate", "*.gate"):
        assert named_by(path, [name]) is None
    assert named_by("model.layers.11.mlp", ["model.layers.1"]) is None


def test_modules_of_their_own_settings(tmp_path: Path) -> None:
    """GPTQModel's dynamic: the first pattern that matches; "-:" are floats."""
    dynamic = {"-:.*o_proj": {}, "+:.*down_proj": {"bits": 8, "group_size": 64}, r".*\.v_proj": {"group_size": 32}}
    forms = {"down_proj": w.gptq(8, 64), "v_proj": w.gptq(4, 32)}
    form = Form({**FORMS["GPTQ", "4 bits, symmetric"].settings, "dynamic": dynamic}, w.gptq())
    written = write(tmp_path / "model", form, skip=lambda path: path.endswith(("o_proj", "lm_head")), writers=forms)
    found = quantised(written.folder)
    assert set(found) == LINEARS - {"o_proj"}
    assert found["down_proj"] == Numbers(DType.I8, 64, DType.F16)
    assert found["v_proj"] == Numbers(DType.I4, 32, DType.F16)
    assert found["q_proj"] == Numbers(DType.I4, 128, DType.F16)
    same_logits(written)


def test_groups_of_settings_by_name_by_pattern_and_by_class(tmp_path: Path) -> None:
    """compressed-tensors: a name counts before a pattern, and that before a class."""
    whole = ct("mixed-precision", num_bits=4, strategy="group", group_size=64)
    by_pattern = ct("int-quantized", ["re:.*down_proj", "re:.*v_proj"], num_bits=8, strategy="channel")
    by_name = ct("float-quantized", [LAYER + "self_attn.v_proj"], num_bits=8, type="float", strategy="channel")
    whole["config_groups"] |= {"group_1": by_pattern["config_groups"]["group_0"]}
    whole["config_groups"] |= {"group_2": by_name["config_groups"]["group_0"]}
    forms = {"down_proj": w.ct_int8(), "v_proj": w.fp8("weight_scale", None, per_row=True)}
    written = write(tmp_path / "model", Form(whole, w.ct_packed()), writers=forms)
    found = quantised(written.folder)
    assert found["down_proj"] == Numbers(DType.I8, 0) and found["v_proj"] == Numbers(DType.F8_E4M3, 0)
    assert found["q_proj"] == Numbers(DType.I4, 64, DType.BF16)
    same_logits(written)


def test_a_module_that_no_group_of_settings_names_is_refused(tmp_path: Path) -> None:
    settings = ct("pack-quantized", ["re:.*[qkvo]_proj"], num_bits=4, strategy="group", group_size=64)
    written = write(tmp_path / "model", Form(settings, w.ct_packed()))
    with pytest.raises(SourceError, match=r"module model\.layers\.0\.mlp\.\w+ is stored quantised, and no target"):
        open_source(str(written.folder))


@pytest.mark.parametrize(
    "names",
    [
        ("self_attn.kv_scale",),
        ("self_attn.k_scale", "self_attn.v_scale"),
        ("self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"),
        ("self_attn.attn.k_scale", "self_attn.attn.v_scale", "self_attn.attn.q_scale"),
        ("self_attn.k_proj.output_scale", "self_attn.v_proj.output_scale"),
    ],
)
def test_scales_of_the_cache_under_any_name_are_ignored_with_a_notice(tmp_path: Path, names: tuple[str, ...]) -> None:
    form = FORMS["compressed-tensors", "fp8, channels"]
    written = write(tmp_path / "model", form, more={LAYER + name: torch.tensor(0.05) for name in names})
    source = open_source(str(written.folder))
    (notice,) = source.notices
    assert notice.startswith(LAYER) and "scales of the KV cache are not used" in notice
    assert not [name for name in source.checkpoint(torch.nn.Module()).names if "scale" in name]  # type: ignore[arg-type]


def test_other_tensors_that_nobody_knows_are_refused_by_their_names(tmp_path: Path) -> None:
    written = write(tmp_path / "model", GPTQ, more={LAYER + "self_attn.q_proj.oddity": torch.ones(1)})
    with pytest.raises(Exception, match=r"q_proj\.oddity belongs to no parameter"):
        capture(open_source(str(written.folder)))


def test_zero_points_out_of_the_middle_count_though_the_config_says_symmetric(tmp_path: Path) -> None:
    written = write(tmp_path / "model", GPTQ, settings=FORMS["GPTQ", "4 bits, symmetric"].settings)
    assert set(quantised(written.folder).values()) == {INT4Z}
    same_logits(written)


def test_groups_that_no_linear_has_are_read_as_floats(tmp_path: Path) -> None:
    settings = {**GPTQ.settings, "group_size": 24}
    written = write(tmp_path / "model", Form(settings, w.gptq(group=24, symmetric=False)))
    assert quantised(written.folder) == {}
    (notice,) = open_source(str(written.folder)).notices
    assert "read as floats and rounded again: weight group 24" in notice
    same_logits(written)


def test_groups_and_rows_of_zeros_stand_for_zeros(tmp_path: Path) -> None:
    """And scales of 1e-30, which only float32 holds."""
    form = FORMS["fp8", "blocks of 128x128 (DeepSeek, Qwen)"]
    written = write(tmp_path / "model", form)
    path = written.folder / "model.safetensors"
    tensors = load_file(path)
    tensors[LAYER + "mlp.up_proj.weight_scale_inv"].zero_()
    tensors[LAYER + "mlp.gate_proj.weight_scale_inv"].fill_(1e-30)
    tensors[LAYER + "mlp.down_proj.weight"].view(torch.uint8)[:5] = 0
    save_file(tensors, path)
    checkpoint = capture(open_source(str(written.folder))).checkpoint
    assert not checkpoint[LAYER + "mlp.up_proj.weight"].read_f32().any()
    assert not checkpoint[LAYER + "mlp.down_proj.weight"].read_f32()[:5].any()
    tiny = checkpoint[LAYER + "mlp.gate_proj.weight"].read_f32()
    assert np.isfinite(tiny).all() and 0 < np.abs(tiny).max() < 1e-26


@pytest.mark.parametrize("bias", [True, False])
def test_biases_are_there_or_not_as_in_the_file(tmp_path: Path, bias: bool) -> None:
    captured = same_logits(write(tmp_path / "model", GPTQ, attention_bias=bias))
    assert (LAYER + "self_attn.q_proj.bias" in captured.checkpoint) is bias


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_that_is_stored_quantised(tmp_path: Path, tied: bool) -> None:
    """Beside an embedding in floats, which a config that ties the two does not change: as transformers has it."""
    overrides: dict[str, Any] = {"tie_word_embeddings": tied, "vocab_size": 96}
    written = write(tmp_path / "model", GPTQ, skip=lambda path: tied and path == "lm_head", **overrides)
    captured = same_logits(written)
    assert isinstance(captured.checkpoint.tensors.get("lm_head.weight"), QuantisedTensor) is not tied


def test_stacked_and_interleaved_rows_stay_as_stored(tmp_path: Path) -> None:
    """q, k, v in one linear, gate and up in another: nothing of them is rounded again."""
    captured = same_logits(write(tmp_path / "model", GPTQ))
    log = RuleLog()
    entries = run_pipeline(captured.graph, default_pipeline(Scheme.BF16, 97, as_stored=True), log, lambda *_: None)
    linears = [n.op for n in entries[0].nodes if isinstance(n.op, PackedLinear)]
    assert [str(op.scheme) for op in linears] == ["int4g128z"] * 4 + ["bf16"]
    exprs = [n.op.expr for n in entries[0].nodes if isinstance(n.op, Weight)]
    assert not [e for e in exprs if any(isinstance(op, Quantize) for op in _ops(e))]
    stored = [leaf for e in exprs for leaf in _leaves(e) if leaf.part is Part.OFFSET]
    assert {leaf.name.split(".")[-2] for leaf in stored} == LINEARS


def _ops(expr: WeightExpr) -> list[object]:
    return [expr.op, *(op for arg in expr.args for op in _ops(arg))] if isinstance(expr, Apply) else []


def _leaves(expr: WeightExpr) -> list[Source]:
    match expr:
        case Source():
            return [expr]
        case Apply(_, args):
            return [leaf for arg in args for leaf in _leaves(arg)]
    return []


def test_a_matrix_of_q_k_and_v_in_the_file_stays_as_stored(tmp_path: Path) -> None:
    """Phi-3's qkv_proj and gate_up_proj, which the module cuts."""
    form = FORMS["GPTQ", "4 bits, symmetric"]
    shape: dict[str, Any] = {"head_dim": 16, "hidden_size": 128, "intermediate_size": 192, "vocab_size": 96}
    written = write(tmp_path / "model", form, family="phi3", **shape)
    assert set(quantised(written.folder)) == {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}
    captured = same_logits(written)
    entries = run_pipeline(
        captured.graph, default_pipeline(Scheme.BF16, 96, as_stored=True), RuleLog(), lambda *_: None
    )
    schemes = {str(n.op.scheme) for n in entries[0].nodes if isinstance(n.op, PackedLinear) and n.loc != "lm_head"}
    assert schemes == {"int4g128"}


def test_a_matrix_the_other_way_round_is_refused(tmp_path: Path) -> None:
    """GPT-2's Conv1D holds [K, N]: of a square one no shape would tell."""
    model = eager_model(config_of("gpt2", n_layer=1))
    stated = {**model.config.to_dict(), "quantization_config": dict(GPTQ.settings)}
    path = "transformer.h.0.attn.c_proj"
    tensors = {name: t for name, t in model.state_dict().items() if name not in (f"{path}.weight", "lm_head.weight")}
    tensors |= {f"{path}.{leaf}": t for leaf, t in GPTQ.write((64, 64), torch.Generator()).tensors.items()}
    (tmp_path / "config.json").write_text(json.dumps({**stated, "architectures": ["GPT2LMHeadModel"]}))
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(SourceError, match=rf"{path} is a Conv1D"):
        capture(open_source(str(tmp_path)))
