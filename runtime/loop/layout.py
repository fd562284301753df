"""From a batch of requests to the arrays of a step."""

from llmc.runtime.loop.schedule import Batch, Chunk
from llmc.runtime.step.arrays import StepBuffers


def lay_out(batch: Batch, step: StepBuffers) -> list[Chunk]:
    """Fill a step's arrays. Returns the chunk of each of its rows."""
    step.begin(samples=True)
    rows = []
    for chunk in batch.chunks:
        tokens = chunk.request.tokens
        step.add_sequence(tokens.ids[chunk.start : chunk.start + chunk.count], chunk.start, chunk.blocks)
        if chunk.samples:
            step.add_sampled_row(step.num_tokens - 1, chunk.request.sampling, tokens.address, len(tokens))
            rows.append(chunk)
    return rows
