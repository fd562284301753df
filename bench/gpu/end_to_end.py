"""A whole model through the public engine: cold start, time per output token, time to first token, graphs.

Weights are random (codegen/random_weights.py), the rest is the real path: llmc.runtime loads the engine folder, sizes
its KV pools, builds its graphs, and its scheduler decides what runs. Sequences are greedy and never end by themselves.
Beside each figure stand two others (expectations.py): the floor on this card, and what was predicted of its data sheet.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu.records import Item, Records
from llmc.runtime import Engine, SamplingParams
from llmc.runtime.loop.results import Output

FIRST_PROMPT = 16  # tokens of the prompt of a cold start


@dataclass(frozen=True)
class Workload:
    """TPOT: `steps` decode steps of `batches` sequences, each with at least `context` tokens. TTFT: of prompts of
    `prompts` tokens, `repeats` times each."""

    batches: tuple[int, ...] = (1, 8, 64)
    context: int = 1024
    steps: int = 64
    prompts: tuple[int, ...] = (1024, 8192)
    repeats: int = 3

    @property
    def max_seq_len(self) -> int:
        """Room for the longest sequence: those that are prefilled first decode beside the prefill of the others."""
        return max(max(self.prompts) + 1, self.context + 3 * max(self.batches) + 2 * self.steps)

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Workload:
        """From JSON."""
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in plain.items()})  # type: ignore[arg-type]


TINY = Workload(batches=(1, 2), context=6, steps=3, prompts=(8, 40), repeats=2)


def measure(records: Records) -> None:
    """options: engine, weights' floor and expectations (expectations.py), the workload, when the process was asked."""
    options = records.options
    workload = Workload.of(options["workload"])
    keys = ["cold start"]
    keys += [f"TPOT, batch {n}" for n in workload.batches]
    keys += [f"TTFT, {n} tokens" for n in workload.prompts]
    keys += ["sound"]
    imported = time.monotonic()
    session: Session | None = None
    try:
        for key in records.each(keys):
            if session is None:
                engine = Engine.load(Path(options["engine"]), device="cuda", serial=options.get("serial", False))
                session = Session(engine, workload, options["seed"])
                loaded = time.monotonic()
            match key.split(","):
                case ["cold start"]:
                    session.answer(FIRST_PROMPT, 1)
                    times = {"asked": options["asked_at"], "imported": imported, "loaded": loaded}
                    records.end(**cold_start(session.engine, times))
                case ["TPOT", _]:
                    records.end(**session.decode(int(key.split()[-1])))
                case ["TTFT", _]:
                    records.end(**session.prefill(int(key.split()[1])))
                case _:
                    records.end(**session.sound())
    finally:
        if session is not None:
            session.engine.close()


def cold_start(engine: Engine, times: dict[str, float]) -> Item:
    """Seconds from the start of the process to the first token of a short prompt; the engine's files are in the page
    cache, where filling them has left them."""
    now = time.monotonic()
    memory = engine.device.memory
    return {
        "seconds": now - times["asked"],
        "imports_s": times["imported"] - times["asked"],
        "load_s": times["loaded"] - times["imported"],
        "first_token_s": now - times["loaded"],
        "hash_s": engine.artifact.hash_seconds,
        "weights_bytes": memory.weights_bytes,
        "kv_bytes": memory.kv_bytes,
        "scratch_bytes": memory.arena_bytes,
        "target": engine.artifact.target.name,
    }


class _Running:
    """A request that is under way, and the tokens it was given."""

    def __init__(self, engine: Engine, prompt: list[int], params: SamplingParams) -> None:
        self.tokens: list[int] = []
        self.handle = engine.submit(prompt, params, on_output=self._take, latency="batch")

    def _take(self, output: Output) -> None:
        self.tokens.extend(output.token_ids)


class Session:
    """Measurements on one engine, which is idle between them."""

    def __init__(self, engine: Engine, workload: Workload, seed: int) -> None:
        self.engine = engine
        self.workload = workload
        self._rng = np.random.default_rng(seed)
        self._shared = self._prompt(workload.context)  # the first of every batch
        self._answers: dict[int, list[int]] = {}  # to it, by batch

    def _prompt(self, length: int) -> list[int]:
        return [int(i) for i in self._rng.integers(0, self.engine.manifest.model.num_valid_tokens, length)]

    def answer(self, prompt_len: int, max_tokens: int) -> float:
        """Seconds to the first token."""
        greedy = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        (done,) = self.engine.generate([self._prompt(prompt_len)], greedy)
        if done.error is not None:
            raise done.error
        return done.timing.ttft

    def decode(self, batch: int) -> Item:
        """Wall time of steps in which `batch` sequences each get one token, and nothing else happens."""
        engine, steps = self.engine, self.workload.steps
        greedy = SamplingParams(temperature=0.0, ignore_eos=True)
        prompts = [self._shared, *(self._prompt(self.workload.context) for _ in range(batch - 1))]
        running = [_Running(engine, prompt, greedy) for prompt in prompts]
        begun = time.perf_counter()
        while not all(r.tokens for r in running):
            engine.step()
        prefilled = time.perf_counter() - begun
        contexts = [self.workload.context + len(r.tokens) for r in running]
        seconds = []
        for _ in range(1 + steps):
            before = sum(len(r.tokens) for r in running)
            begun = time.perf_counter()
            engine.step()
            seconds.append(time.perf_counter() - begun)
            got = sum(len(r.tokens) for r in running) - before
            assert got == batch, f"a step gave {got} tokens to {batch} sequences"
        for r in running:
            r.handle.cancel()
        self._answers[batch] = running[0].tokens
        first, *rest = seconds
        median = statistics.median(rest)
        return {
            "seconds": median,
            "p90_s": sorted(rest)[int(0.9 * (len(rest) - 1))],
            "longest_s": max(rest),
            "tokens_per_second": batch / median,
            "steps": steps,
            "context": round(statistics.mean(contexts) + (1 + steps) / 2),
            "graph_build_s": max(0.0, first - median),  # of the bucket's graph, which the first step needs
            "prefill_s": prefilled,
        }

    def prefill(self, length: int) -> Item:
        """From submitting one prompt to its first token; the first time builds graphs."""
        first = self.answer(length, 1)
        rest = [self.answer(length, 1) for _ in range(self.workload.repeats)]
        median = statistics.median(rest)
        return {
            "seconds": median,
            "longest_s": max(rest),
            "tokens_per_second": length / median,
            "graph_build_s": max(0.0, first - median),
        }

    def sound(self) -> Item:
        """Whether logits are finite, and whether a sequence gets the same tokens in any company; and what is free."""
        from llmc.runtime.cuda.driver.context import Context

        ids = self._shared[:FIRST_PROMPT]
        logits = self.engine.logits(ids, rows=[len(ids) - 1])
        kept = min(map(len, self._answers.values()), default=0)
        answers = {tuple(tokens[:kept]) for tokens in self._answers.values()}
        self.engine.check_integrity()
        with contextlib.closing(Context()) as context, context.current():
            free, total = context.memory()
        error = "" if np.isfinite(logits).all() else "logits are not finite"
        if len(answers) > 1:
            error = error or f"the first prompt's {kept} tokens depend on the batch"
        return {
            "error": error,
            "compared_tokens": kept,
            "logits_std": float(logits.std()),
            "free_bytes": free,
            "total_bytes": total,
        }
