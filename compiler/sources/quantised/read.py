"""A quantised checkpoint as one of parameters under their float names, each in the numbers that it is stored in.

What is quantised the file itself shows: a module has the method's tensors, or a float weight. Lists of modules that
were left out are only compared with that.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from llmc.compiler.sources.checkpoint import AnyTensor, Checkpoint, QuantisedTensor, StoredTensor, checkpoint_of
from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.quantised.methods import Reader
from llmc.compiler.sources.quantised.module import Module, Reading
from llmc.compiler.sources.quantised.patterns import left_as_floats, named_by
from llmc.compiler.sources.quantised.stated import Stated
from llmc.ir.formats import Scheme

# A name is a module's path and a tensor's name, but for tensors that are parts of a parameter.
_OF_A_PART = re.compile(r"(?P<path>.*)(?:\.(?P<part>weight\..+)|_(?P<stacked>blocks|scales))")

# What says how to quantise values that come while a model runs, which the engine does in its own way.
_OF_THE_CACHE = re.compile(r"(.*\.)?(kv_scale|[qkv]_(scale|zero_point)|[qkv]_proj\.output_(scale|zero_point))")
_OF_INPUTS = re.compile(r"(.*\.)?((activation|act)_scale|input_(scale|scale_ub|zero_point|global_scale))")


@dataclass(frozen=True)
class QuantisedCheckpoint:
    """`stored_as`: its formats, counted, for people. `notices`: a line for each thing that was taken otherwise."""

    checkpoint: Checkpoint
    stored_as: str
    notices: tuple[str, ...]

    def of(self, model: PreTrainedModel) -> Checkpoint:
        """For a module. SourceError where it has a matrix the other way round, as GPT-2 does."""
        for tensor in self.checkpoint.tensors.values():
            path = tensor.name.rpartition(".")[0]
            if isinstance(tensor, QuantisedTensor) and isinstance(_submodule(model, path), Conv1D):
                raise SourceError(f"{tensor.origin}: {path} is a Conv1D, whose quantised weights are not supported")
        return self.checkpoint


def read_quantised(checkpoint: Checkpoint, reader: Reader, stated: Stated) -> QuantisedCheckpoint:
    """Raises SourceError for tensors that are missing, misshapen or of another type, by name."""
    tensors: list[AnyTensor] = []
    readings: list[Reading] = []
    unused: list[str] = []
    for module in modules_of(checkpoint):
        reading = reader.read(module)
        if reading is not None:
            readings.append(reading)
            tensors.append(reading.tensor)
        used = frozenset() if reading is None else reading.used
        left = [tensor for name, tensor in module.tensors.items() if name not in used]
        unused += [t.name for t in left if _OF_THE_CACHE.fullmatch(t.name) or _OF_INPUTS.fullmatch(t.name)]
        tensors += [t for t in left if not _OF_THE_CACHE.fullmatch(t.name) and not _OF_INPUTS.fullmatch(t.name)]
    if not readings and not unused:
        raise stated.refusal("no tensor of the checkpoint is stored so")
    notices = [*_against_lists(readings, stated), *_as_floats(readings), *_unused(unused)]
    return QuantisedCheckpoint(checkpoint_of(tensors), _stored_as(reader, readings), tuple(notices))


def modules_of(checkpoint: Checkpoint) -> Iterator[Module]:
    found: defaultdict[str, dict[str, StoredTensor]] = defaultdict(dict)
    for name, tensor in checkpoint.tensors.items():
        assert isinstance(tensor, StoredTensor)
        path, _, leaf = name.rpartition(".")
        if (of_part := _OF_A_PART.fullmatch(name)) is not None:
            path, leaf = of_part["path"], of_part["part"] or of_part["stacked"]
        found[path][leaf] = tensor
    return (Module(path, inner, checkpoint.metadata) for path, inner in found.items())


def _submodule(model: PreTrainedModel, path: str) -> object:
    try:
        return model.get_submodule(path)
    except AttributeError:  # transformers calls it otherwise
        return None


def _against_lists(readings: Sequence[Reading], stated: Stated) -> Iterator[str]:
    names = left_as_floats(stated)
    for reading in readings:
        path = reading.tensor.name.removesuffix(".weight")
        if (name := named_by(path, names)) is not None:
            yield f"{stated.where}: {name!r} leaves out {path}, which is stored quantised and taken so"


def _as_floats(readings: Sequence[Reading]) -> Iterator[str]:
    by_reason: Mapping[str, list[str]] = defaultdict(list)
    for reading in readings:
        if reading.floats is not None:
            by_reason[reading.floats].append(reading.tensor.name)
    for reason, names in by_reason.items():
        yield f"{_some(names)}: read as floats and rounded again: {reason}"


def _unused(names: Sequence[str]) -> Iterator[str]:
    of_cache = [name for name in names if _OF_THE_CACHE.fullmatch(name)]
    of_inputs = [name for name in names if name not in of_cache]
    if of_cache:
        yield f"{_some(of_cache)}: scales of the KV cache are not used: the engine takes its own, for each token"
    if of_inputs:
        yield f"{_some(of_inputs)}: scales of inputs are not used: the engine takes its own, for each row"


def _some(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _stored_as(reader: Reader, readings: Sequence[Reading]) -> str:
    """As "GPTQ: int4g128 x14, as floats x1"."""
    kinds = Counter(_kind(reading.tensor) for reading in readings)
    return (
        f"{reader.title}: {', '.join(f'{kind} x{count}' for kind, count in kinds.items()) or 'of the KV cache alone'}"
    )


def _kind(tensor: AnyTensor) -> str:
    return str(Scheme.of(tensor.numbers)) if isinstance(tensor, QuantisedTensor) else "as floats"
