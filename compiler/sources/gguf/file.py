"""The door for a GGUF file: its metadata is config, tokenizer and generation settings in one."""

from collections import Counter
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig
from transformers.integrations.gguf.gguf_config_mapping import GGUF_CONFIG_ARCHS
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.generation import GenerationDefaults, generation_defaults
from llmc.compiler.sources.gguf.advice import INSTEAD
from llmc.compiler.sources.gguf.checkpoint import open_gguf_checkpoint
from llmc.compiler.sources.gguf.metadata import check_metadata
from llmc.compiler.sources.gguf.parts import open_parts
from llmc.compiler.sources.gguf.reading import FLOATS, HeaderReader, read_gguf_config
from llmc.compiler.sources.gguf.tokenizer import tokenizer_files
from llmc.compiler.sources.gguf.unstated import add_unstated
from llmc.compiler.sources.gguf.vocabulary import Vocabulary, read_vocabulary
from llmc.compiler.sources.model_config import one_line, require_causal_lm
from llmc.compiler.sources.model_name import gguf_title
from llmc.compiler.sources.model_source import ModelSource, SourceFormat

# general.sampling.* -> generation_config.json
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


def open_gguf(path: Path) -> ModelSource:
    """Read everything of a GGUF file, or of the parts whose first it is, but the tensors' data. Raises SourceError."""
    reader, tensors = open_parts(path)
    metadata = reader.scalars()
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise SourceError(f"{path}: no general.architecture in the metadata")
    if architecture in GGUF_CONFIG_ARCHS:
        raise SourceError(f"{path}: GGUF architecture {architecture!r} is not supported yet; {INSTEAD}")
    config = _config(path, reader)
    require_causal_lm(config, None, path)
    check_metadata(metadata, architecture, config, path)
    weights = add_unstated(config, architecture, tensors)
    vocabulary = read_vocabulary(reader, metadata, path)
    _name_special_tokens(config, vocabulary)
    formats = Counter(tensor.kind.name for tensor in tensors)
    blocks = ", ".join(f"{name} x{count}" for name, count in sorted(formats.items()) if name not in FLOATS)
    return ModelSource(
        name=gguf_title(path, metadata.get("general.name")),
        path=path,
        format=SourceFormat.GGUF,
        config=config,
        config_file=None,
        generation=_generation(metadata, config, path),
        tokenizer=tokenizer_files(vocabulary, metadata, path) if vocabulary else None,
        quantization=blocks or None,
        licence=metadata.get("general.license"),
        num_tensors=len(tensors),
        checkpoint=lambda model: open_gguf_checkpoint(path, weights, architecture, model),
    )


def _config(path: Path, reader: HeaderReader) -> PretrainedConfig:
    try:
        stated = read_gguf_config(path, reader)
        config: PretrainedConfig = CONFIG_MAPPING[stated["model_type"]].from_dict(stated)
    except Exception as error:  # unknown architecture, missing key, wrong type: all of transformers' own making
        raise SourceError(f"{path}: transformers cannot read its config: {one_line(error)}") from error
    return config


def _name_special_tokens(config: PretrainedConfig, vocabulary: Vocabulary | None) -> None:
    """The config's ids are the vocabulary's: where the file states none, transformers puts its class's defaults."""
    roles = vocabulary.roles if vocabulary else {}
    config.bos_token_id = roles.get("bos")
    config.pad_token_id = roles.get("pad")
    config.eos_token_id = list(vocabulary.ends) if vocabulary else None


def _generation(metadata: dict[str, Any], config: PretrainedConfig, path: Path) -> GenerationDefaults:
    stated: dict[str, Any] = {}
    for key, value in metadata.items():
        if not key.startswith("general.sampling."):
            continue
        name = _SAMPLING.get(key.removeprefix("general.sampling."))
        if name is None:
            raise SourceError(f"{path}: generation setting {key} = {value!r} is not supported")
        stated[name] = value
    if stated:
        stated["do_sample"] = stated.get("temperature", 1.0) > 0
    return generation_defaults(stated, config, path)
