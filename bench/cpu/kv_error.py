"""What a KV cache in bytes costs, and what it brings: python bench/cpu/kv_error.py [--model MODEL] [--batch N]

Engines of one model (default: the demo model) in one scheme, with the KV cache in bf16, int8 and fp8. For each context:
KL of the next token from the bf16 cache's, mean and p99 over the last positions, and how often the first choice agrees.
Then decode steps at --batch sequences of the longest context, interleaved, medians.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # as a script: this checkout's bench and tests

from llmc.compiler.build import build
from llmc.compiler.build_options import BuildOptions
from llmc.compiler.progress import Progress
from llmc.compiler.sources.demo import fetch_demo
from llmc.compiler.verify.corpus import held_out
from llmc.ir.formats import KV_NAMES, Scheme
from llmc.ir.types import DType
from llmc.runtime import Engine

LAST = 64  # positions of a context that are compared
KINDS = (DType.BF16, DType.I8, DType.F8_E4M3)


def log_probabilities(engine: Engine, ids: list[int]) -> npt.NDArray[np.float64]:
    """[LAST, vocab] of the last positions."""
    logits = engine.logits(ids, rows=range(len(ids) - LAST, len(ids))).astype(np.float64)
    logits = logits[:, : engine.manifest.model.num_valid_tokens]
    shifted = logits - logits.max(1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(1, keepdims=True)))


def compare(wide: npt.NDArray[np.float64], narrow: npt.NDArray[np.float64]) -> str:
    kl = (np.exp(wide) * (wide - narrow)).sum(1)
    agree = float((wide.argmax(1) == narrow.argmax(1)).mean())
    return f"KL {kl.mean():.2e}, p99 {np.quantile(kl, 0.99):.2e}, top-1 {agree:.1%}"


def decode_seconds(engine: Engine, ids: list[int], batch: int, steps: int) -> float:
    """Of a step with `batch` sequences of this context; a first token of their own keeps them from sharing."""
    handles = [
        engine.submit([100 + i, *ids[1:]], latency="batch", temperature=0.0, max_tokens=steps + 2, ignore_eos=True)
        for i in range(batch)
    ]
    for handle in handles:
        next(iter(handle))
    took = []
    for _ in range(steps):
        begin = time.perf_counter()
        engine.step()
        took.append(time.perf_counter() - begin)
    for handle in handles:
        handle.cancel()
    engine.step()
    return statistics.median(took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="[default: SmolLM2-135M, fetched]")
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--contexts", default="512,2048,4096")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20, help="of decode, in a round")
    args = parser.parse_args()
    model = args.model or str(fetch_demo("smollm2"))
    contexts = [int(n) for n in args.contexts.split(",")]
    with tempfile.TemporaryDirectory(prefix="llmc-kv-") as folder:
        engines = {}
        for kv in KINDS:
            out = Path(folder) / KV_NAMES[kv]
            build(BuildOptions(model, out, scheme=Scheme.named(args.dtype), kv=kv, certify=0), Progress())
            engines[kv] = Engine.load(out, threads=2, max_seq_len=max(contexts) + args.steps + 8, max_batch=args.batch)
        text = engines[DType.BF16].encode(held_out())
        ids = (text * -(-max(contexts) // len(text)))[: max(contexts)]
        print(f"{Path(model).name}, weights in {args.dtype}; per token: ", end="")
        print(", ".join(f"{KV_NAMES[k]} {e.artifact.target.kv.bytes_per_token:,} B" for k, e in engines.items()))
        for context in contexts:
            found = {kv: log_probabilities(engine, ids[:context]) for kv, engine in engines.items()}
            for kv in KINDS[1:]:
                print(f"context {context:5} {KV_NAMES[kv]:5} {compare(found[DType.BF16], found[kv])}")
        rounds = [
            {kv: decode_seconds(e, ids, args.batch, args.steps) for kv, e in engines.items()}
            for _ in range(args.rounds)
        ]
        for kv in KINDS:
            seconds = statistics.median(one[kv] for one in rounds)
            ratio = statistics.median(one[DType.BF16] / one[kv] for one in rounds)
            print(
                f"decode, {args.batch} of {max(contexts)}: {KV_NAMES[kv]:5} {seconds * 1e3:.1f} ms, {ratio:.2f}x bf16"
            )
        for engine in engines.values():
            engine.close()


if __name__ == "__main__":
    main()
