"""Settings of a config.json that change nothing in transformers' config object: what nobody looks for, and what another
setting overrides. Found by leaving each out and by changing it, so that no list of keys has to follow transformers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from transformers import GenerationConfig, PretrainedConfig

from llmc.compiler.sources.raw_settings import Path, leaves, quiet, replaced, value_of, without

# Written by transformers about the file itself, not about the model.
_BOOKKEEPING = frozenset({"_name_or_path", "architectures", "model_type", "transformers_version"})

Build = Callable[[dict[str, Any]], PretrainedConfig]
_ABSENT = object()


@dataclass(frozen=True)
class UnusedSetting:
    """`name`: with the keys around it, "text_config.foo". `carriers`: attributes, by class, that hold the value and
    nothing else, where modeling code may still read it. `instead`: the setting that counts, if there is one.
    `disagrees`: that one says something else, where a switch (`use_sliding_window`) only leaves this one without use.
    """

    name: str
    carriers: frozenset[tuple[str, str]] = frozenset()
    instead: str | None = None
    disagrees: bool = False

    def __str__(self) -> str:
        return self.name if self.instead is None else f"{self.name} ({self.instead} counts)"


def unused_settings(raw: Mapping[str, Any], build: Build) -> tuple[UnusedSetting, ...]:
    """Of a raw config that `build` accepts. Two settings that say the same are both used."""
    generation = vars(GenerationConfig())  # type: ignore[no-untyped-call]  # read from config.json by generation.py
    with quiet():
        found = _Settings(raw, build)
        paths = [path for path in _settings(raw, found.config) if path[-1] not in _BOOKKEEPING | generation.keys()]
        unused = [found.unused(path) for path in paths]
    return tuple(sorted((setting for setting in unused if setting is not None), key=str))


class _Settings:
    """A raw config, and what becomes of it when it is changed."""

    def __init__(self, raw: Mapping[str, Any], build: Build) -> None:
        self.raw = copy.deepcopy(dict(raw))
        self.build = build
        self.config = build(copy.deepcopy(self.raw))
        self.state = _state(self.config)

    def unused(self, path: Path) -> UnusedSetting | None:
        """None: the setting has an effect, or says what another says, or nothing."""
        value = value_of(self.raw, path)
        owner = _owner(self.config, path)
        key, declared = path[-1], _declared(owner)
        if value in (None, {}, []) or self._has_effect(path):
            return None
        name = ".".join(path)
        held = {attribute for attribute in (key, f"_{key}") if attribute in vars(owner).keys() - declared}
        if key not in held and getattr(owner, key, None) == value:
            return None
        carriers = frozenset((type(owner).__name__, attribute) for attribute in held)
        if key in held:  # nobody looked for it
            return UnusedSetting(name, carriers)
        others = [o for o in leaves(self.raw) if o[: len(path)] != path and path[: len(o)] != o]
        for other in others:
            if self._has_effect(path, without(self.raw, other)):
                agrees = self._state_of(without(self.raw, other)) == self.state
                return None if agrees and not held else UnusedSetting(name, carriers, ".".join(other), not agrees)
        for other in others:
            if any(self._has_effect(path, changed) for changed in _changed(self.raw, other)):
                return UnusedSetting(name, carriers, ".".join(other))
        return UnusedSetting(name, carriers)

    def _has_effect(self, path: Path, within: dict[str, Any] | None = None) -> bool:
        """Whether leaving the setting out, or changing it, changes the config (or that of another raw one): more than
        attributes that only carry it."""
        raw = self.raw if within is None else within
        state = self.state if within is None else self._state_of(within)
        if state is None:
            return False
        own = set() if path[-1] in _declared(_owner(self.config, path)) else {".".join(path)}
        own.add(".".join((*path[:-1], f"_{path[-1]}")))
        for changed in (without(raw, path), *_changed(raw, path)):
            found = self._state_of(changed)
            if found is None:  # refused: so it was looked at
                return True
            if any(found.get(k, _ABSENT) != state.get(k, _ABSENT) for k in (found.keys() | state.keys()) - own):
                return True
        return False

    def _state_of(self, raw: dict[str, Any]) -> dict[str, Any] | None:
        """None where the config class refuses it."""
        try:
            return _state(self.build(copy.deepcopy(raw)))
        except Exception:  # config classes validate with whatever exception they like
            return None


def _state(config: PretrainedConfig, prefix: str = "") -> dict[str, Any]:
    """The attributes of a config and of those inside it, by their names with dots."""
    found: dict[str, Any] = {}
    for name, value in vars(config).items():
        inner = isinstance(value, PretrainedConfig)
        found |= _state(value, f"{prefix}{name}.") if inner else {prefix + name: value}
    return found


def _settings(raw: Mapping[str, Any], config: PretrainedConfig, before: Path = ()) -> Iterator[Path]:
    """Of a config and of those inside it."""
    for key, value in raw.items():
        inner = getattr(config, key, None)
        if isinstance(inner, PretrainedConfig) and isinstance(value, dict):
            yield from _settings(value, inner, (*before, key))
        else:
            yield (*before, key)


def _owner(config: PretrainedConfig, path: Path) -> PretrainedConfig:
    """The config that a setting belongs to."""
    for key in path[:-1]:
        inner = getattr(config, key, None)
        config = inner if isinstance(inner, PretrainedConfig) else config
    return config


def _declared(config: PretrainedConfig) -> set[str]:
    return {field.name for field in fields(config)} | set(config.attribute_map)


def _changed(raw: Mapping[str, Any], path: Path) -> Iterator[dict[str, Any]]:
    """The config with other values of one setting, each of the same type."""
    value = value_of(raw, path)
    others: tuple[Any, ...] = ()
    match value:
        case bool():
            others = (not value,)
        case int() | float():
            others = (value + 1, 1)
        case str():
            others = (value[::-1], value + "x")
        case list():
            others = (value[:-1], [*value, *value[-1:]])
        case dict():
            others = ({},)
            for inner in leaves(value):
                yield from _changed(raw, (*path, *inner)) if value_of(value, inner) != {} else ()
    for other in others:
        yield replaced(raw, path, other)
