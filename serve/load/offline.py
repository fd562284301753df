"""An engine's own speed, in this process: prefill, decode, and decode of batches. No requests come or go meanwhile."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from llmc.runtime import Engine, RequestHandle
from llmc.serve.load.progress import Progress
from llmc.serve.load.refusal import BenchRefused
from llmc.serve.load.utilisation import Machine


@dataclass(frozen=True)
class Case:
    """`new_tokens` 0: prompt tokens a second, until each has its first token. Else output tokens a second of all
    sequences together, while all of them decode."""

    batch: int
    prompt_len: int
    new_tokens: int

    @property
    def name(self) -> str:
        phase = f"decode {self.new_tokens} after" if self.new_tokens else "prefill"
        return f"{phase} {self.prompt_len}, batch {self.batch}"


@dataclass(frozen=True)
class Speed:
    """Of one case: the median of its repetitions, and their range. `step`: seconds of a step of decode, or from the
    submission to the last first token. `mfu` of prefill, `mbu` of decode."""

    case: Case
    tps: float
    lowest: float
    highest: float
    step: float
    mfu: float | None
    mbu: float | None


def cases(batches: Sequence[int], prompt_len: int, output_len: int) -> list[Case]:
    """Prefill and decode of one sequence, then of each batch."""
    sizes = sorted({1, *batches})
    return [Case(size, prompt_len, new) for new in (0, output_len) for size in sizes]


def measure_cases(
    engine: Engine,
    wanted: Sequence[Case],
    repetitions: int,
    seed: int,
    machine: Machine | None,
    progress: Progress,
) -> list[Speed]:
    """All cases once in every round, after one round that is not counted. Raises BenchRefused."""
    for case in wanted:
        _check(engine, case)
    seconds: dict[Case, list[float]] = {case: [] for case in wanted}
    for number in range(repetitions + 1):
        progress.begin(f"offline, round {number} of {repetitions}" if number else "offline, warm-up", len(wanted))
        for case in wanted:
            taken = _measure(engine, case, f"{seed}/{number}/{case.name}")
            if number:
                seconds[case].append(taken)
            progress.advance()
    return [_speed(case, seconds[case], machine) for case in wanted]


def _check(engine: Engine, case: Case) -> None:
    """BenchRefused for a case that the engine as it is loaded cannot hold at once."""
    limits = engine.device.limits
    length = case.prompt_len + 2 * case.new_tokens + 1
    if case.batch > limits.max_seqs or length > limits.max_seq_len:
        raise BenchRefused(
            f"{case.name}: needs room for {case.batch} sequences of {length} tokens; "
            f"the engine has max_batch {limits.max_seqs}, max_seq_len {limits.max_seq_len}"
        )


def _measure(engine: Engine, case: Case, seed: str) -> float:
    """Seconds: of one decode step on average, or of the prefill."""
    handles = _submit(engine, case, seed, 2 * case.new_tokens or 1)
    begin = time.perf_counter()
    for handle in handles:
        next(iter(handle))  # its first token
    if not case.new_tokens:
        return time.perf_counter() - begin
    begin = time.perf_counter()
    for _ in range(case.new_tokens - 1 or 1):
        engine.step()
    seconds = (time.perf_counter() - begin) / (case.new_tokens - 1 or 1)
    whole = all(handle.completion is None for handle in handles)
    for handle in handles:
        handle.cancel()
    if not whole:
        raise BenchRefused(
            f"{case.name}: the KV cache is too small to decode them together; load with more --kv-memory"
        )
    return seconds


def _speed(case: Case, seconds: Sequence[float], machine: Machine | None) -> Speed:
    tokens = case.batch * (1 if case.new_tokens else case.prompt_len)
    ordered = sorted(seconds)
    middle = len(ordered) // 2
    typical = (ordered[middle] + ordered[~middle]) / 2
    mfu = mbu = None
    if machine is not None:
        work = machine.work
        if case.new_tokens:
            context = case.prompt_len + case.new_tokens // 2
            moved = work.weight_bytes + case.batch * work.kv_read(context)
            mbu = moved / typical / machine.bandwidth
        elif machine.peak is not None:
            mfu = case.batch * work.flops(case.prompt_len, 1) / typical / machine.peak
    return Speed(case, tokens / typical, tokens / ordered[-1], tokens / ordered[0], typical, mfu, mbu)


def _submit(engine: Engine, case: Case, seed: str, max_tokens: int) -> list[RequestHandle]:
    """Random prompts, all different: no prefix can be shared."""
    random, pool = Random(seed), range(engine.manifest.model.num_valid_tokens)
    prompts = [random.choices(pool, k=case.prompt_len) for _ in range(case.batch)]
    return [engine.submit(prompt, temperature=0.0, max_tokens=max_tokens, ignore_eos=True) for prompt in prompts]
