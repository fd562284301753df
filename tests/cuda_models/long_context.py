"""long_context.py ENGINE OUT.npz LENGTH: a prompt in large chunks; logits of its last positions, and the blocks that
each KV group held while tokens came."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from llmc.runtime import Engine
from llmc.runtime.loop.results import Output
from tests.cuda_models.emulated import ids_of

LAST = 4


def main(folder: str, out: str, length: str) -> None:
    ids = ids_of(int(length), 97, 1)
    with Engine.load(Path(folder), device="cuda", max_batch=1, max_rows=LAST) as engine:
        groups = len(engine.manifest.targets[0].kv.groups)
        held: list[list[int]] = []

        def look(_: Output) -> None:
            (table,) = engine.core.blocks.tables
            held.append([table.num_held(group) for group in range(groups)])

        rows = list(range(len(ids) - LAST, len(ids)))
        logits = engine.logits(ids, rows=rows)
        handle = engine.submit(ids, temperature=0.0, max_tokens=3, ignore_eos=True, on_output=look)
        handle.result()
        engine.check_integrity()
    np.savez(out, logits=logits, held=np.array(held))


if __name__ == "__main__":
    main(*sys.argv[1:])
