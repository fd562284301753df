"""Lowering a model for a prediction: the passes of a build, on shapes alone."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from llmc.compiler.capture.capture import Captured, capture, ignored_settings
from llmc.compiler.envelope import model_length
from llmc.compiler.progress import Progress
from llmc.compiler.roofline.lowering import Lowering
from llmc.compiler.roofline.subject import Subject
from llmc.compiler.sources.resolve import open_source
from llmc.compiler.sources.shapes import open_shapes
from llmc.ir.formats import Scheme, WeightLayout
from llmc.passes.pipeline import default_pipeline, run_pipeline
from llmc.passes.rewrite import RuleLog


def model_subject(model: str, scheme: Scheme, progress: Progress) -> Subject:
    """A model folder by its config.json; anything else as a build would open it."""
    progress.stage("reading the model")
    folder = Path(model).expanduser()
    source = open_shapes(folder) if folder.is_dir() else open_source(model)
    vocab = int(source.config.get_text_config().vocab_size)

    @cache
    def captured() -> Captured:
        progress.stage("capturing the graph")
        return capture(source)

    @cache
    def lowered(layout: WeightLayout) -> Lowering:
        graph = captured().graph
        progress.stage("optimising")
        pipeline = default_pipeline(scheme, vocab, layout)
        graphs = run_pipeline(graph, pipeline, RuleLog(), lambda name, graph: None)
        return Lowering({g.name: g for g in graphs})

    return Subject(
        source.name,
        scheme.name,
        model_length(source),
        lambda target: lowered(target.layout),
        ignored=lambda: ignored_settings(source, captured()),
    )
