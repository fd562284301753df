"""From a batch of requests to the arrays of a step."""

from itertools import islice, takewhile

from llmc.runtime.loop.batch import Batch, Chunk
from llmc.runtime.step.arrays import StepBuffers


def lay_out(batch: Batch, step: StepBuffers) -> list[Chunk]:
    """Fill a step's arrays. Returns the chunk of each of its rows.

    Those who decode come first, all at once: most of what they need is in the arrays since the last step.
    """
    step.begin(samples=True)
    rows = list(takewhile(_decodes, batch.chunks))
    if rows:
        requests = [chunk.request for chunk in rows]
        histories = [request.tokens for request in requests]
        step.set_decoding(
            [history.last for history in histories],
            [chunk.start + 1 for chunk in rows],
            [chunk.blocks for chunk in rows],
            [request.sampling for request in requests],
            [history.address for history in histories],
        )
    for chunk in islice(batch.chunks, len(rows), None):
        tokens, sampling, end = chunk.request.tokens, chunk.request.sampling, chunk.start + chunk.count
        step.add_sequence(tokens.ids[chunk.start : end], chunk.start, chunk.blocks)
        for behind in range(chunk.samples - 1, -1, -1):
            step.add_sampled_row(step.num_tokens - 1 - behind, sampling, tokens.address, end - behind)
            rows.append(chunk)
    return rows


def _decodes(chunk: Chunk) -> bool:
    return chunk.count == chunk.samples == 1
