"""What a model folder says of how it was quantised; known before torch is imported or a tensor is looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.json_file import read_json_object

_KEYS = ("quantization_config", "compression_config")

# Where older tools wrote what config.json holds now, and the method of those that do not say it.
_OLDER_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq", "hf_quant_config.json": "modelopt"}


@dataclass(frozen=True)
class Stated:
    """A method of quantisation by its name, its settings, and what states them, for messages."""

    method: str
    settings: Mapping[str, Any]
    where: str

    def number(self, *keys: str, default: int | None = None) -> int:
        """The first of these settings that is stated, a whole number; SourceError for anything else."""
        value = self.get(*keys, default=default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refusal(f"{keys[0]} is {value!r}, expected a whole number")
        return value

    def get(self, *keys: str, default: Any = None) -> Any:
        """The first of these settings that is stated."""
        return next((self.settings[key] for key in keys if self.settings.get(key) is not None), default)

    def refusal(self, why: str) -> SourceError:
        return SourceError(f"{self.where}: {self.method}: {why}")


def stated_quantisation(folder: Path, raw: Mapping[str, Any]) -> Stated | None:
    """By the folder's config.json (`raw`), else by the file of an older tool; None: the weights are floats."""
    for where, settings in _in_config(folder / "config.json", raw):
        return Stated(_method(settings, where), settings, where)
    for name, method in _OLDER_FILES.items():
        if (folder / name).is_file():
            settings = read_json_object(folder / name)
            inner = settings.get("quantization", settings)  # ModelOpt's are one level deeper
            if not isinstance(inner, dict):
                raise SourceError(f"{folder / name}: quantization is {inner!r}, expected an object")
            return Stated(str(inner.get("quant_method", method)), inner, str(folder / name))
    return None


def without_quantisation(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json as it was before: transformers would look for the packages of the method."""
    kept = {key: value for key, value in raw.items() if key not in _KEYS}
    if isinstance(text := kept.get("text_config"), dict):
        kept["text_config"] = {key: value for key, value in text.items() if key not in _KEYS}
    return kept


def _in_config(path: Path, raw: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for owner, scope in (("", raw), ("text_config.", raw.get("text_config"))):
        for key in _KEYS:
            settings = scope.get(key) if isinstance(scope, dict) else None
            if settings is None:
                continue
            if not isinstance(settings, dict):
                raise SourceError(f"{path}: {owner}{key} is {settings!r}, expected an object")
            yield f"{path}: {owner}{key}", settings


def _method(settings: Mapping[str, Any], where: str) -> str:
    method = settings.get("quant_method") or settings.get("quantization_method")
    if isinstance(method, str):
        return method.lower()
    if settings.get("load_in_4bit") or settings.get("load_in_8bit"):  # bitsandbytes' first files
        return "bitsandbytes"
    raise SourceError(f"{where}: no quant_method, so how the weights are stored is unknown")
