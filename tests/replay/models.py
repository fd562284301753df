"""What a replay builds: real models, a tiny one for each thing that modeling code does differently, hollow shapes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tiny_models import config_of, eager_model
from transformers import AutoConfig

from llmc.compiler.sources.demo import fetch_demo

ROOT = Path(__file__).resolve().parents[2]
REAL = ("smollm2", "gemma3-270m")
HOLLOW = ("Llama-3.1-8B", "Qwen3-0.6B")
HOLLOW_LAYERS = 2  # they are shown for their widths
TINY = (
    "llama",
    "llama-yarn",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3",
    "phi3",
    "gpt2",
    "gpt_neox",
    "cohere",
    "granite_swa",
    "opt",
)

CPUS = ("x86-64-v4+vnni+bf16+amx", "x86-64-v3", "generic")
GPUS = ("a100", "h100", "b200")
TARGETS = {"f32": CPUS, "bf16": CPUS + GPUS, "int8": CPUS, "f16": GPUS}  # by dtype


@dataclass(frozen=True)
class Subject:
    """A model that is built for every target in every dtype."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}-{self.name}"

    @property
    def hollow(self) -> bool:
        return self.kind == "hollow"

    def path(self, made: Path) -> Path:
        """The model; a tiny one is written below `made`."""
        if self.kind == "real":
            return fetch_demo(self.name)
        folder = made / str(self)
        if self.kind == "hollow":
            config = AutoConfig.from_pretrained(ROOT / "bench" / "configs" / self.name)
            config.update({"num_hidden_layers": HOLLOW_LAYERS, "layer_types": None})
            config.save_pretrained(folder)
            return folder
        eager_model(config_of(self.name)).save_pretrained(folder)
        return folder


def subjects() -> list[Subject]:
    """All of them, those that take longest first."""
    kinds = {"real": REAL, "hollow": HOLLOW, "tiny": TINY}
    return [Subject(kind, name) for kind, names in kinds.items() for name in names]
