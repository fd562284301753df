"""What a process of its own costs, and what a commit one step late brings: python bench/serving/overhead.py ENGINE

The start until the child is ready. CPU time of a token's way out of the child and into text, beside that of the text
alone. The same greedy answers from an engine in this process and from one in another, in turns. Last, a toy: the same
engine behind a device that computes in another thread, a little slower, in lockstep and running ahead; a tiny engine
shows it best.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # as a script: this checkout's bench and tests

from llmc.runtime import Engine, EngineProcess, Output, SamplingParams
from llmc.runtime.artifact.artifact import EngineFiles, open_artifact, read_manifest
from llmc.runtime.device.open_device import open_device
from llmc.runtime.process.answers import Answers
from llmc.runtime.process.async_engine import AsyncEngine
from llmc.runtime.process.frames import Frames, frame
from llmc.runtime.process.wire import Row, plain_rows, read_rows
from llmc.runtime.step.limits import LoadOptions
from llmc.runtime.text.answer import Answer
from llmc.runtime.text.model_text import ModelText
from llmc.runtime.text.tokenizer import Tokenizer
from tests.runtime.late_device import InLockstep, LateDevice

PROMPT = 32  # tokens
PAUSE, CARE = 20e-3, 2e-3  # seconds: of a step, of a token


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", type=Path)
    parser.add_argument("--requests", type=int, default=8, help="in flight (%(default)s)")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    load = LoadOptions(threads=options.threads, max_batch=options.requests, prefix_cache=False)
    asyncio.run(starts(options.engine, load, options.rounds))
    params = SamplingParams(temperature=0, max_tokens=options.tokens, ignore_eos=True)
    asyncio.run(messages(options.engine, params, options.requests, options.tokens, options.rounds))
    asyncio.run(compared(options.engine, load, params, options.requests, options.rounds))
    ahead(options.engine, load, params, options.requests, options.rounds)


def spread(values: Sequence[float], unit: str, scale: float = 1.0) -> str:
    each = sorted(scale * value for value in values)
    return f"{statistics.median(each):8.1f} {unit} (median of {len(each)}; {each[0]:.1f} to {each[-1]:.1f})"


async def starts(folder: Path, load: LoadOptions, rounds: int) -> None:
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        process = await EngineProcess.start({"m": folder}, load)
        seconds.append(time.perf_counter() - began)
        await process.close()
    print(f"ready after            {spread(seconds, 'ms', 1e3)}")


async def messages(folder: Path, params: SamplingParams, count: int, tokens: int, rounds: int) -> None:
    """One message a step with `count` rows, as the child and the parent handle them; no engine runs."""
    text = ModelText.load(EngineFiles(folder, read_manifest(folder)))
    params = text.sampling(params, seed=1)
    ids = prompts(1, text.files.manifest.model.num_valid_tokens, 5)[0] * (tokens // PROMPT + 1)
    rows = [[Row(key, 0, ids[at], None, None, 0, 0, None) for key in range(count)] for at in range(tokens)]
    sent, told, alone = [], [], []
    for _ in range(rounds):
        began = time.process_time()
        frames = [frame("tokens", 0, *plain_rows(step)) for step in rows]
        sent.append((time.process_time() - began) / count / tokens)
        told.append(heard(frames, ids, params, text, count) / count / tokens)
        plains = [Answer(params, text.tokenizer, ids[:4]) for _ in range(count)]
        began = time.process_time()
        for token in ids[:tokens]:
            for answer in plains:
                answer.accept(token, None, None)
        alone.append((time.process_time() - began) / count / tokens)
    print(f"CPU time a token: the child's message {spread(sent, 'us', 1e6)}")
    print(f"  the parent's, with text and stream  {spread(told, 'us', 1e6)}")
    print(f"  the text alone, as in one process   {spread(alone, 'us', 1e6)}")


def heard(frames: list[bytes], ids: list[int], params: SamplingParams, text: ModelText, count: int) -> float:
    """Seconds to make outputs of frames, one a step."""
    every = [
        Answers(ids[:4], params, text.tokenizer, 1, lambda *_: None, lambda: None, lambda: None) for _ in range(count)
    ]
    reader, began = Frames(), time.process_time()
    for step in frames:
        for _, _, *plain in reader.feed(step):
            for row in read_rows(plain):
                every[row.key].row(row)
        for answers in every:
            answers.take()
    return time.process_time() - began


def prompts(count: int, vocab: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(vocab) for _ in range(PROMPT)] for _ in range(count)]


async def compared(folder: Path, load: LoadOptions, params: SamplingParams, count: int, rounds: int) -> None:
    here, there, cpu, ratios = [], [], [], []
    with Engine.load(folder, threads=load.threads, max_batch=load.max_batch, prefix_cache=False) as local:
        async with await EngineProcess.start({"m": folder}, load) as process:
            for number in range(rounds + 1):
                asked = prompts(count, local.manifest.model.num_valid_tokens, number)
                began = time.perf_counter()
                expected = [one.token_ids for one in local.generate(asked, params)]
                alone = time.perf_counter() - began
                began, used = time.perf_counter(), time.process_time()
                found = await asyncio.gather(*(read(process.engine, prompt, params) for prompt in asked))
                apart, used = time.perf_counter() - began, time.process_time() - used
                assert found == expected, "another process, another answer"
                if number:  # the first round touches everything for the first time
                    total = count * len(found[0])
                    here.append(total / alone)
                    there.append(total / apart)
                    cpu.append(used / total)
                    ratios.append(alone / apart)
    print(f"in this process        {spread(here, 'tok/s')}")
    print(f"in one of its own      {spread(there, 'tok/s')}")
    print(f"  share of the former  {spread(ratios, '%', 100)}")
    more = 1 / statistics.median(there) - 1 / statistics.median(here)
    print(f"  more a token         {1e6 * more:8.1f} us of wall time")
    print(f"  CPU time here        {spread(cpu, 'us a token', 1e6)}")


async def read(engine: AsyncEngine, prompt: list[int], params: SamplingParams) -> tuple[int, ...]:
    stream = await engine.submit(prompt, params)
    tokens: list[int] = []
    async for output in stream:
        tokens += output.token_ids
    return tuple(tokens)


def ahead(folder: Path, load: LoadOptions, params: SamplingParams, count: int, rounds: int) -> None:
    """Steps that take PAUSE more than the engine's own, while whoever gets a token has CARE to take of it."""
    found: dict[bool, list[float]] = {False: [], True: []}
    answers = set()
    for _ in range(rounds):
        for late in found:
            artifact = open_artifact(folder)
            slow = LateDevice(open_device(artifact, load), PAUSE)
            device = slow if late else InLockstep(slow)
            with Engine(artifact, device, device.limits.max_seqs, Tokenizer.load(artifact)) as engine:
                asked = prompts(count, artifact.manifest.model.num_valid_tokens, 1)
                handles = [engine.submit(prompt, params, on_output=take_care) for prompt in asked]
                began = time.perf_counter()
                steps = 0
                while engine.step():
                    steps += 1
                found[late].append((time.perf_counter() - began) / steps)
                answers.add(tuple(handle.result().token_ids for handle in handles))
    assert len(answers) == 1, "running ahead changes the answers"
    print(f"a step, in lockstep    {spread(found[False], 'ms', 1e3)}")
    print(f"a step, running ahead  {spread(found[True], 'ms', 1e3)}")


def take_care(output: Output) -> None:
    end = time.perf_counter() + CARE
    while time.perf_counter() < end:
        pass


if __name__ == "__main__":
    main()
