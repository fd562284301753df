"""texts.py ENGINE OUT.npz TEXT...: logits of every position of each text; chunks and company change no bit; seconds per
decoded token are printed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from llmc.runtime import Engine
from tests.cuda_models.emulated import random_chunks


def main(folder: str, out: str, *texts: str) -> None:
    with Engine.load(Path(folder), device="cuda", max_rows=64) as engine:
        sequences = [engine.encode(text) for text in texts]
        logits = [engine.logits(ids) for ids in sequences]
        chunked = engine.logits(sequences[0], chunks=random_chunks(len(sequences[0]), 9, 1))
        assert np.array_equal(chunked, logits[0]), "chunks changed bits"
        together = engine.generate(sequences, temperature=0.0, max_tokens=3, ignore_eos=True, logprobs=2)
        for ids, found in zip(sequences, together, strict=True):
            (alone,) = engine.generate([ids], temperature=0.0, max_tokens=3, ignore_eos=True, logprobs=2)
            assert (alone.token_ids, alone.logprobs) == (found.token_ids, found.logprobs), "company changed bits"
        answer = engine.generate([sequences[0]], temperature=0.0, max_tokens=9, ignore_eos=True)[0]
        print(f"{answer.timing.tpot(9):.2f} s per decoded token, emulated")
    named: dict[str, Any] = {f"text{i}": found for i, found in enumerate(logits)}
    np.savez(out, **named)


if __name__ == "__main__":
    main(*sys.argv[1:])
