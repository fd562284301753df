"""From a batch of requests to the arrays of a step."""

from llmc.runtime.loop.batch import Batch, Chunk
from llmc.runtime.step.arrays import StepBuffers


def lay_out(batch: Batch, step: StepBuffers) -> list[Chunk]:
    """Fill a step's arrays. Returns the chunk of each of its rows."""
    step.begin(samples=True)
    rows = []
    for chunk in batch.chunks:
        tokens, sampling, end = chunk.request.tokens, chunk.request.sampling, chunk.start + chunk.count
        step.add_sequence(tokens.ids[chunk.start : end], chunk.start, chunk.blocks)
        for behind in range(chunk.samples - 1, -1, -1):
            step.add_sampled_row(step.num_tokens - 1 - behind, sampling, tokens.address, end - behind)
            rows.append(chunk)
    return rows
