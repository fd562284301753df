"""What a model is, whatever it came from: config, tensors, tokenizer, how it wants to be sampled."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from transformers import PretrainedConfig, PreTrainedModel

from llmc.compiler.sources.checkpoint import Checkpoint
from llmc.compiler.sources.generation import GenerationDefaults
from llmc.compiler.sources.model_config import ConfigFile
from llmc.compiler.sources.tokenizer import TokenizerFiles


class SourceFormat(Enum):
    HF_FOLDER = "hf-folder"
    GGUF = "gguf"


@dataclass(frozen=True)
class ModelSource:
    """A causal LM as it lies on disk. Everything here was read or checked; no weight data was."""

    name: str
    path: Path
    format: SourceFormat
    config: PretrainedConfig
    config_file: ConfigFile | None
    """None where there is no config.json: of a GGUF file, whose every setting is used or refused."""
    generation: GenerationDefaults
    tokenizer: TokenizerFiles | None
    """None: the source has no tokenizer at all."""
    quantization: str | None
    """Formats of what is not stored as floats: "Q4_1 x210, Q8_0 x1", "GPTQ: int4g128 x14"; None: all are."""
    licence: str | None
    """As the source states it, or None where it is silent."""
    num_tensors: int | None
    """That the source stores; None: of a model of which only the config was read."""
    checkpoint: Callable[[PreTrainedModel], Checkpoint] = field(repr=False, compare=False)
    """The tensors under the names HF's own checkpoints have. The module (on meta will do) is asked for its
    names, because transformers maps GGUF names by looking at the module."""
    notices: tuple[str, ...] = ()
    """A line for each thing of the checkpoint that is taken otherwise than its files say, for the report."""
