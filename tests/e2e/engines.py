"""Folders of tiny models and the engines built from them."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiny_models import config_of, eager_model
from transformers import PreTrainedModel

from llmc.compiler.build import BuildOptions, Progress, build
from llmc.ir.formats import Scheme


class Silent(Progress):
    """Progress that nobody watches."""


@dataclass
class Engines:
    """Builds each engine once in a folder that several processes share."""

    root: Path
    models: dict[str, PreTrainedModel] = field(default_factory=dict)
    progress: Progress = field(default_factory=Silent)

    def model(self, family: str, **overrides: Any) -> tuple[PreTrainedModel, Path]:
        """The eager float32 model of a family, and its HF folder."""
        name = _name(family, overrides)
        if name not in self.models:
            self.models[name] = eager_model(config_of(family, **overrides))
        folder = self.root / name
        with self.once(folder) as missing:
            if missing:
                self.models[name].save_pretrained(folder)
        return self.models[name], folder

    def mutant(self, family: str, **changes: Any) -> Path:
        """A folder with the weights of a family's model and a config in which settings were changed."""
        folder = self.root / ("mutant-" + _name(family, changes))
        with self.once(folder) as missing:
            if missing:
                eager_model(config_of(family)).save_pretrained(folder)
                config_of(family, **changes).save_pretrained(folder)
        return folder

    def engine(self, source: Path, scheme: Scheme = Scheme.F32, **options: Any) -> Path:
        """The engine of an HF folder."""
        parts = [source.name, scheme.name, *(f"{name}={value}" for name, value in sorted(options.items()))]
        out = self.root / f"{'-'.join(parts)}.engine"
        with self.once(out) as missing:
            if missing:
                build(BuildOptions(str(source), out, scheme=scheme, **options), self.progress)
        return out

    @contextmanager
    def once(self, folder: Path) -> Iterator[bool]:
        """Whether the caller has to make the folder, while no other process makes it."""
        done = self.root / f"{folder.name}.done"
        with (self.root / f"{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield not done.exists()
            done.touch()


def _name(family: str, overrides: dict[str, Any]) -> str:
    return "-".join([family, *(f"{key}={value}" for key, value in overrides.items())]).replace("/", "_")[:120]
