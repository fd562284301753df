"""The envelope that an engine is built for: its longest sequence, its largest batch and step."""

from __future__ import annotations

from llmc.compiler.build_options import BuildError, BuildOptions
from llmc.compiler.sources.model_source import ModelSource
from llmc.runtime.artifact.manifest import Limits

DEFAULT_MAX_SEQ_LEN = 8192  # for models that state no length
MOST_POSITIONS = 2**31 - 1


def model_length(source: ModelSource) -> int:
    """The positions a model states, or the default where it states none."""
    stated: int | None = getattr(source.config.get_text_config(), "max_position_embeddings", None)
    return DEFAULT_MAX_SEQ_LEN if stated is None else stated


def limits_of(options: BuildOptions, source: ModelSource) -> Limits:
    """Raises BuildError for a length that the model, or llmc, does not have."""
    stated = model_length(source)
    if options.max_seq_len is not None and options.max_seq_len > stated:
        raise BuildError(f"--max-seq-len {options.max_seq_len}: the model's positions end at {stated}")
    if (length := options.max_seq_len or stated) > MOST_POSITIONS:
        raise BuildError(f"--max-seq-len {length}: positions are 32-bit numbers, at most {MOST_POSITIONS} expected")
    return Limits(length, options.max_batch, max(options.step_tokens, options.max_batch))
