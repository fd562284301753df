"""The measurement behind a certificate: an engine's logits beside its source's, over the held-out text."""

from __future__ import annotations

from collections.abc import Callable

from llmc.compiler.verify.certificate import FORMAT, Certificate, Figures
from llmc.compiler.verify.corpus import PIECE_TOKENS, held_out, spread
from llmc.compiler.verify.errors import VerificationError
from llmc.compiler.verify.layer_errors import Layers
from llmc.compiler.verify.logits import compare
from llmc.compiler.verify.reference import SourceModel, reference_logits
from llmc.runtime.artifact.hashing import digest
from llmc.runtime.loop.engine import Engine

USUAL_TOKENS = 512  # 3 s of SmolLM2-135M on two cores, its loading among them, after a build of 11


def measure(
    engine: Engine,
    model: SourceModel,
    tokens: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Certificate:
    """Of an engine with a tokenizer, loaded for PIECE_TOKENS at least, as far as its envelope has them; `model` is its
    source (reference.source_model). Raises VerificationError where logits are no numbers."""
    text = held_out()
    tokens_of = engine.manifest.tokens
    prefix = [tokens_of.bos] if tokens_of.add_bos and tokens_of.bos is not None else []
    longest = min(PIECE_TOKENS, engine.manifest.limits.max_seq_len)
    sequences = spread(engine.encode(text)[len(prefix) :], prefix, tokens, longest)
    total = sum(map(len, sequences))
    layers = Layers(engine.artifact)
    with layers.watching(model.module):
        verdict = compare(
            sequences,
            engine.logits,
            lambda ids: reference_logits(model.module, ids),
            lambda done: progress(done, total),
        )
    if (figures := Figures.of(verdict)) is None:
        raise VerificationError("logits over the held-out text are infinite or NaN")
    return Certificate(
        format=FORMAT,
        engine=engine.artifact.files_digest,
        source=engine.manifest.model.name,
        text=digest(text.encode()),
        tokens=total,
        measured_on=engine.artifact.target.name,
        figures=figures,
        layers=tuple(layers.errors(model)),
        remarks=(),
    )
