"""config.json -> transformers' config object, with what would be dropped silently refused or listed."""

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.json_file import read_json_object
from llmc.compiler.sources.quantised.stated import Stated, stated_quantisation, without_quantisation
from llmc.compiler.sources.raw_settings import value_of
from llmc.compiler.sources.setting_at_fault import explained
from llmc.compiler.sources.unused_settings import UnusedSetting, unused_settings

MOST_LAYERS = 10_000


@dataclass(frozen=True)
class ConfigFile:
    """The settings of a config.json as they were read; its model_type is one that transformers knows.

    Those of a quantisation stand apart: transformers would quantise the module, or look for packages that do.
    """

    path: Path
    raw: Mapping[str, Any]
    quantisation: Stated | None = None

    def build(self, raw: Mapping[str, Any]) -> PretrainedConfig:
        """transformers' config object for these settings or for others. Raises what transformers likes."""
        return CONFIG_MAPPING[raw["model_type"]].from_dict(copy.deepcopy(dict(raw)))

    @cached_property
    def unused(self) -> tuple[UnusedSetting, ...]:
        """Those that change nothing in the config object."""
        return unused_settings(self.raw, self.build)

    def contradictions(self) -> Iterator[str]:
        """A line for each setting that says something else than the one that counts."""
        for setting in self.unused:
            if setting.instead is not None and setting.disagrees:
                ours, theirs = (_shown(value_of(self.raw, name.split("."))) for name in (setting.name, setting.instead))
                yield (
                    f"{self.path}: {setting.name} is {ours}, but {setting.instead} is {theirs}, "
                    "which is what transformers uses"
                )


def read_config(folder: Path) -> tuple[PretrainedConfig, ConfigFile]:
    """The config object of an HF folder, and the file it was made of. Raises SourceError."""
    path = folder / "config.json"
    _refuse_other_folders(folder, path)
    raw = read_json_object(path)
    stated = stated_quantisation(folder, raw)
    plain = without_quantisation(raw)
    return build_config(plain, path), ConfigFile(path, plain, stated)


def _refuse_other_folders(folder: Path, config: Path) -> None:
    """What people give for a model's folder, by what it is. An adapter may come with a config, or without."""
    if (folder / "adapter_config.json").is_file():
        raise SourceError(f"{folder}: a PEFT adapter; merge it into its base model first")
    if config.is_file():
        return
    if (folder / "manifest.json").is_file():
        raise SourceError(f"{folder}: an engine already, for `llmc run`; give the model that it is to be made of")
    raise SourceError(f"{folder}: not a model folder: config.json is missing")


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
    build = ConfigFile(where, raw).build
    try:
        config = build(raw)
    except Exception as error:  # config classes validate with whatever exception they like
        raise SourceError(f"{where}: {explained(raw, build, one_line(error))}") from error
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
    # Checkpoints older than the class in transformers spell it in their own case: MPTForCausalLM.
    stated = {str(name).casefold() for name in architectures} if isinstance(architectures, list) else set()
    if not stated & {name.casefold() for name in known}:
        raise SourceError(
            f"{where}: architectures {architectures} is not a causal LM, expected {' or '.join(sorted(known))}"
        )


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."


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
            if isinstance(layers, int) and not 1 <= layers <= MOST_LAYERS:
                raise SourceError(f"{where}: {name} is {layers}, expected 1 to {MOST_LAYERS} layers")


def _refuse_positions(config: PretrainedConfig, where: Path) -> None:
    """SourceError for a context that no answer fits in. None: the model states no length."""
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    if positions is not None and positions < 2:
        raise SourceError(
            f"{where}: max_position_embeddings is {positions}, expected 2 or more: a token asked and one answered"
        )
