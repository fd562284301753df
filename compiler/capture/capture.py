"""HF model -> captured IR: the module traced, its parameters bound to the checkpoint, nothing computed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray
from torch import fx
from transformers import PretrainedConfig, PreTrainedModel

from llmc.compiler.capture import aten_layers, aten_pointwise, aten_shape  # noqa: F401  (registers handlers)
from llmc.compiler.capture.buffers import evaluate_buffers
from llmc.compiler.capture.config_reads import recorded_reads
from llmc.compiler.capture.errors import CaptureError, TransformersFailed
from llmc.compiler.capture.export import Exported, export, meta_model, run_once
from llmc.compiler.capture.importer import Importer
from llmc.compiler.capture.order import in_order_of_use
from llmc.compiler.capture.parameters import Parameters, bind, stored_values
from llmc.compiler.capture.sizes import Sizes, ir_dtype
from llmc.compiler.sources.checkpoint import Checkpoint, Rows
from llmc.compiler.sources.model_source import ModelSource
from llmc.compiler.sources.setting_at_fault import explained
from llmc.ir.graph import Builder, Graph, Node, Value
from llmc.ir.ops.constant import Origin, Scalar, Source, Weight, WeightExpr
from llmc.ir.verify import verify

_log = logging.getLogger(__name__)

OpenCheckpoint = Callable[[PreTrainedModel], Checkpoint]

_WRAPPER = "model."
"""Where the traced step keeps the HF module; not part of state_dict names."""


@dataclass(frozen=True)
class Captured:
    """A model as IR: inputs %ids and %positions i64[B, S], output the logits f32[B, S, V]."""

    graph: Graph
    model_class: str
    checkpoint: Checkpoint = field(repr=False)
    buffers: Mapping[str, NDArray[Any]] = field(repr=False)
    ignored_tensors: tuple[str, ...]
    untied: tuple[str, ...]
    config_reads: frozenset[tuple[str, str]] = field(repr=False)
    """(class, attribute) of each read of a config while the module was built and traced."""

    def read(self, source: Source, rows: Rows | None = None) -> NDArray[Any]:
        """The values a weight expression's leaf stands for, or rows of them; floats of the checkpoint as float32."""
        if source.origin is Origin.BUFFER:
            values = self.buffers[source.name]
            return values if rows is None else values[rows[0] : rows[1]]
        return stored_values(self.checkpoint, source, rows)


def capture(source: ModelSource) -> Captured:
    """Capture a model. CaptureError, one line, for what cannot be expressed; SourceError for a bad checkpoint."""
    file = source.config_file
    for line in file.contradictions() if file is not None else ():
        _log.warning("%s", line)
    try:
        return capture_with(source.config, source.checkpoint, source.num_tensors)
    except TransformersFailed as error:
        if file is None:
            raise
        words = explained(file.raw, lambda raw: run_once(file.build(raw), source.num_tensors), str(error))
        raise TransformersFailed(f"{file.path}: {words}") from error


def capture_with(config: PretrainedConfig, open_checkpoint: OpenCheckpoint, num_tensors: int | None = None) -> Captured:
    """Capture the causal LM of a config with the checkpoint that `open_checkpoint` gives for its module.

    `num_tensors` of the checkpoint, where they are known before the module is.
    """
    with recorded_reads() as reads:
        model = meta_model(config, num_tensors)
        checkpoint = open_checkpoint(model)
        parameters = bind(model, checkpoint)
        exported = export(model)
        graph, buffers = import_program(exported, parameters)
    verify(graph)
    name = type(model).__name__
    return Captured(graph, name, checkpoint, buffers, parameters.ignored, parameters.untied, frozenset(reads))


def ignored_settings(source: ModelSource, captured: Captured) -> list[str]:
    """Settings of the config.json that neither transformers' config class nor the module's code did anything with."""
    unused = source.config_file.unused if source.config_file is not None else ()
    return [str(setting) for setting in unused if setting.carriers.isdisjoint(captured.config_reads)]


def import_program(exported: Exported, parameters: Parameters) -> tuple[Graph, dict[str, NDArray[Any]]]:
    """The exported program as a captured graph, and the values of the buffers it uses."""
    program = exported.program
    if mutated := program.graph_signature.buffers_to_mutate:
        name = next(iter(mutated.values())).removeprefix(_WRAPPER)
        raise CaptureError(f"the model changes its buffer {name} while it runs, which is not supported")
    sizes = Sizes.of(program)
    builder = Builder()
    inputs: dict[str, Value] = {}
    constants = _Constants(exported, parameters, builder)
    env: dict[fx.Node, Value] = {}
    for node in program.graph.nodes:
        if node.op != "placeholder":
            continue
        if node.name in ("ids", "positions"):
            inputs[node.name] = env[node] = Value(sizes.type(node.meta["val"], node.name), node.name)
        elif node.users:
            env[node] = constants.value(node)
    importer = Importer(builder, sizes, inputs["ids"])
    importer.env.update(env)
    importer.run(program.graph)
    (output,) = (node for node in program.graph.nodes if node.op == "output")
    (logits,) = (importer.env[node] for node in output.args[0])
    assert isinstance(logits, Value)
    graph = Graph("captured", (inputs["ids"], inputs["positions"]), (logits,), tuple(builder.nodes))
    graph = in_order_of_use(graph)
    used = constants.buffers_in(graph.nodes)
    return graph, constants.values(used)


class _Constants:
    """The program's parameters, buffers and lifted tensors as weights and scalars."""

    def __init__(self, exported: Exported, parameters: Parameters, builder: Builder) -> None:
        self.model: PreTrainedModel = exported.model
        self.program = exported.program
        self.parameters = parameters
        self.builder = builder
        signature = self.program.graph_signature
        self.names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        self.lifted: dict[str, str] = signature.inputs_to_lifted_tensor_constants

    def value(self, node: fx.Node) -> Value:
        if node.name in self.lifted:
            return self._lifted(self.lifted[node.name])
        name = self.names[node.name].removeprefix(_WRAPPER)
        # torch keeps one placeholder for tied parameters, under either name
        name = self.model.all_tied_weights_keys.get(name, name)
        expr: WeightExpr
        if name in self.parameters.exprs:
            expr = self.parameters.exprs[name]
        else:
            buffer = self.model.get_buffer(name)
            expr = Source(name, ir_dtype(buffer.dtype, name), tuple(buffer.shape), Origin.BUFFER)
        return self.builder.add(Weight(expr), loc=name.rpartition(".")[0], name=name)

    def buffers_in(self, nodes: tuple[Node, ...]) -> set[str]:
        weights = (node.op.expr for node in nodes if isinstance(node.op, Weight))
        return {expr.name for expr in weights if isinstance(expr, Source) and expr.origin is Origin.BUFFER}

    def values(self, names: set[str]) -> dict[str, NDArray[Any]]:
        known = {name: self.program.constants[name].numpy() for name in names if name in self.program.constants}
        own = {name for name in names - known.keys()}
        return evaluate_buffers(self.model, own) | known

    def _lifted(self, name: str) -> Value:
        """A tensor that modeling code makes out of Python numbers."""
        tensor = self.program.constants[name]
        if tensor.device.type == "meta":
            raise CaptureError(f"a constant tensor ({name}, {list(tensor.shape)}) of the model has no value")
        dtype = ir_dtype(tensor.dtype, name)
        if tensor.dim() == 0:
            return self.builder.add(Scalar(float(tensor), dtype), name=name)
        return self.builder.add(Weight(Source(name, dtype, tuple(tensor.shape), Origin.BUFFER)), name=name)
