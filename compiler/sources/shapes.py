"""A model from its config.json alone: the shapes of its tensors, which transformers' module knows, and no values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from transformers import PreTrainedModel

from llmc.compiler.sources.checkpoint import Checkpoint, Rows, StoredDtype, StoredTensor, checkpoint_of
from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.generation import read_generation
from llmc.compiler.sources.model_config import read_config
from llmc.compiler.sources.model_name import folder_title
from llmc.compiler.sources.model_source import ModelSource, SourceFormat


def open_shapes(folder: Path) -> ModelSource:
    """The model of a folder with a config.json, whether its weights are there or not; they are never opened.

    It can be captured and lowered, and built without weights (codegen/hollow.py): reading a value is a SourceError, as
    is a folder without config.
    """
    config, config_file = read_config(folder)
    if config_file.quantisation is not None:
        raise config_file.quantisation.refusal("only the tensors show what is quantised, not the config alone")
    return ModelSource(
        name=folder_title(folder),
        path=folder,
        format=SourceFormat.HF_FOLDER,
        config=config,
        config_file=config_file,
        generation=read_generation(folder, config, config_file.raw),
        tokenizer=None,
        quantization=None,
        licence=None,
        num_tensors=None,
        checkpoint=lambda model: _shapes(model, folder),
    )


def _shapes(model: PreTrainedModel, folder: Path) -> Checkpoint:
    """A tensor for every parameter of the module, one for those that are tied."""

    def refuse(rows: Rows | None) -> NDArray[Any]:
        raise SourceError(f"{folder}: only its config was read, not its weights")

    tied = set(model.all_tied_weights_keys)
    return checkpoint_of(
        [
            StoredTensor(name, StoredDtype.BF16, tuple(value.shape), f"config of {folder.name}", refuse)
            for name, value in model.state_dict().items()
            if name not in tied
        ]
    )
