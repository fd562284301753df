"""config.json -> transformers' config object, with what would be dropped silently refused or listed."""

import dataclasses
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.json_file import read_json_object

# Written by transformers about the file itself, not about the model.
_BOOKKEEPING = frozenset({"_name_or_path", "architectures", "model_type", "transformers_version"})

MOST_LAYERS = 10_000

# Where quantisers write their method beside config.json.
_QUANTIZER_FILES = {
    "quantize_config.json": "gptq",
    "hf_quant_config.json": "modelopt",
    "quant_config.json": "awq",
}


def read_config(folder: Path) -> tuple[PretrainedConfig, tuple[str, ...], dict[str, Any]]:
    """(config object, keys it ignores, the raw JSON) of an HF folder. Raises SourceError."""
    path = folder / "config.json"
    raw = read_json_object(path)
    _refuse_quantized(folder, raw)
    config = build_config(raw, path)
    return config, ignored_keys(config, raw), raw


def build_config(raw: dict[str, Any], where: Path) -> PretrainedConfig:
    """The config object of a raw config; SourceError where it is no causal LM transformers has."""
    model_type = raw.get("model_type")
    if not isinstance(model_type, str):
        raise SourceError(f"{where}: no model_type, so the architecture is unknown")
    if model_type not in CONFIG_MAPPING:
        if "auto_map" in raw:
            raise SourceError(f"{where}: model_type {model_type!r} needs remote code (auto_map), which llmc never runs")
        raise SourceError(f"{where}: transformers does not know model_type {model_type!r}")
    _refuse_depth(raw, where)
    try:
        config = CONFIG_MAPPING[model_type].from_dict(raw)
    except Exception as error:  # config classes validate with whatever exception they like
        raise SourceError(f"{where}: {one_line(error)}") from error
    require_causal_lm(config, raw.get("architectures"), where)
    _refuse_positions(config, where)
    return config


def require_causal_lm(config: PretrainedConfig, architectures: object, where: Path) -> None:
    """SourceError unless transformers has a causal LM for this config, and the checkpoint is of one."""
    class_names = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    if class_names is None:
        raise SourceError(f"{where}: model_type {config.model_type!r} has no causal LM in transformers")
    known = {class_names} if isinstance(class_names, str) else set(class_names)
    if architectures is None:
        return
    if not isinstance(architectures, list) or not known & {str(name) for name in architectures}:
        raise SourceError(
            f"{where}: architectures {architectures} is not a causal LM, expected {' or '.join(sorted(known))}"
        )


def ignored_keys(config: PretrainedConfig, raw: dict[str, Any], prefix: str = "") -> tuple[str, ...]:
    """Keys of `raw` that the config class does not declare and only carries along as attributes.

    A legacy key that the class translates (rope_scaling, torch_dtype) vanishes from the object; one that
    nobody looks for stays on it under its own name.
    """
    declared = {f.name for f in dataclasses.fields(config)} | set(config.attribute_map) | _BOOKKEEPING
    found: list[str] = []
    for key, value in raw.items():
        sub_config = getattr(config, key, None)
        if isinstance(sub_config, PretrainedConfig) and isinstance(value, dict):
            found += ignored_keys(sub_config, value, f"{prefix}{key}.")
        elif key not in declared and key in vars(config):
            found.append(prefix + key)
    return tuple(sorted(found))


def one_line(error: BaseException) -> str:
    """An exception as one line of at most 300 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."


def _refuse_depth(raw: dict[str, Any], where: Path) -> None:
    """SourceError for a number of layers that no model has: config classes make lists of that length."""
    nested = [value for value in raw.values() if isinstance(value, dict)]
    for scope in (raw, *nested):
        model_type = scope.get("model_type")
        known = CONFIG_MAPPING[model_type] if isinstance(model_type, str) and model_type in CONFIG_MAPPING else None
        aliases = getattr(known, "attribute_map", {})
        for name in {"num_hidden_layers", aliases.get("num_hidden_layers", "num_hidden_layers")}:
            layers = scope.get(name)
            if isinstance(layers, int) and layers > MOST_LAYERS:
                raise SourceError(f"{where}: {name} is {layers}, no model has more than {MOST_LAYERS} layers")


def _refuse_positions(config: PretrainedConfig, where: Path) -> None:
    """SourceError for a context that no answer fits in. None: the model states no length."""
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    if positions is not None and positions < 2:
        raise SourceError(
            f"{where}: max_position_embeddings is {positions}, expected 2 or more: a token asked and one answered"
        )


def _refuse_quantized(folder: Path, raw: dict[str, Any]) -> None:
    for owner, scope in (("", raw), ("text_config.", raw.get("text_config"))):
        if not isinstance(scope, dict):
            continue
        for key in ("quantization_config", "compression_config"):
            stated = scope.get(key)
            if stated is None:
                continue
            method = (
                stated.get("quant_method") or stated.get("quantization_method") if isinstance(stated, dict) else None
            )
            raise SourceError(
                f"{folder / 'config.json'}: quantised checkpoint "
                f"({owner}{key}: {method or 'method not stated'}) is not supported yet; "
                "build from the unquantised weights"
            )
    for name, method in _QUANTIZER_FILES.items():
        if (folder / name).is_file():
            raise SourceError(
                f"{folder / name}: quantised checkpoint ({method}) is not supported yet; build from the "
                "unquantised weights"
            )
