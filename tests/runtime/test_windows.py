"""Engines with several KV groups on the reference device, which checks every block table it is given: each block that a
token reads holds what this sequence wrote there, and each block behind its group's window was given back."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from llmc.runtime import Engine, FinishReason, RequestHandle, SamplingParams
from llmc.runtime.errors import PromptTooLong, StepFailed
from llmc.runtime.loop.results import Completion
from tests.runtime import reference_oracle as oracle
from tests.runtime.ended import ended
from tests.runtime.engine_folders import IM_END, Windows, fill_engine, kv_layout, target

GROUPS = [(None, 6), (None, 13, 6, 1), (6,), (24, 7)]
PARAMS = SamplingParams(temperature=1, seed=3, ignore_eos=True, logprobs=1, max_tokens=30)


def answer(windows: Windows, prompt: Sequence[int], params: SamplingParams, seed: int) -> tuple[list[int], list[float]]:
    """What the first group's window lets the device know, and so its answer."""
    return oracle.generate(prompt, params, seed, eos=(IM_END,), max_len=256, window=windows[0])


def check(windows: Windows, completion: Completion, prompt: Sequence[int], params: SamplingParams) -> None:
    tokens, logprobs = answer(windows, prompt, params, completion.seed)
    assert completion.error is None and list(completion.token_ids) == tokens
    assert params.logprobs is None or [entry.logprob for entry in completion.logprobs] == logprobs


def prompts_of(rng: random.Random, count: int, longest: int = 90) -> list[list[int]]:
    return [[rng.randrange(oracle.NUM_VALID) for _ in range(rng.randint(1, longest))] for _ in range(count)]


@pytest.fixture(scope="module")
def folder_of(
    build_reference: Callable[[Windows], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Windows], Path]:
    """folder_of(windows) -> an engine folder that tests only read."""
    made = {}

    def make(windows: Windows) -> Path:
        if windows not in made:
            made[windows] = tmp_path_factory.mktemp("windows")
            fill_engine(made[windows], build_reference(windows), targets=(target(kv=kv_layout(windows)),))
        return made[windows]

    return make


@pytest.mark.parametrize("windows", GROUPS, ids=str)
@pytest.mark.parametrize("max_tokens", [8, 64])
def test_answers_are_the_oracles(folder_of: Callable[[Windows], Path], windows: Windows, max_tokens: int) -> None:
    prompts = prompts_of(random.Random(1), 6)
    with Engine.load(folder_of(windows), max_tokens=max_tokens) as engine:
        for completion, prompt in zip(engine.generate(prompts, PARAMS), prompts, strict=True):
            check(windows, completion, prompt, PARAMS)
        whole = engine.logits(prompts[0], rows=[len(prompts[0]) - 1])
        assert (whole[0] == oracle.logits(prompts[0], windows[0])).all()
        engine.check_integrity()
        assert engine.num_free_blocks == sum(engine.device.num_blocks)


@pytest.mark.parametrize("windows", GROUPS, ids=str)
def test_scarce_pools_preempt_and_answer_alike(folder_of: Callable[[Windows], Path], windows: Windows) -> None:
    rng = random.Random(7)
    prompts = prompts_of(rng, 16, longest=40)
    layout = kv_layout(windows)
    memory = 9 * sum(group.block_bytes for group in layout.groups)
    params = SamplingParams(temperature=1, seed=3, ignore_eos=True, max_tokens=40)
    with Engine.load(folder_of(windows), kv_memory=memory, max_tokens=16) as engine:
        spent = zip(engine.device.num_blocks, layout.groups, strict=True)
        assert sum(count * group.block_bytes for count, group in spent) <= memory
        longest = engine.core.scheduler.max_len
        fitting = [prompt for prompt in prompts if len(prompt) < longest]
        completions = engine.generate(fitting, params)
        assert None not in windows or sum(c.num_preemptions for c in completions) >= 3
        for completion, prompt in zip(completions, fitting, strict=True):
            room = longest - len(prompt)
            tokens, _ = answer(windows, prompt, params, completion.seed)
            assert list(completion.token_ids) == tokens[:room] and completion.error is None
        engine.check_integrity()
        assert engine.num_free_blocks == sum(engine.device.num_blocks)


def test_a_long_request_holds_no_more_than_its_window(folder_of: Callable[[Windows], Path]) -> None:
    """240 tokens through pools of 4 blocks: prompts in chunks, then one token at a time."""
    windows = (6, 5)
    bounds = [-(-(window + 8) // oracle.BLOCK_TOKENS) + 1 for window in windows]
    for prompt_len in (10, 200):
        with Engine.load(folder_of(windows), max_batch=1, max_tokens=8) as engine:
            assert engine.device.num_blocks == (4, 4)
            handle = engine.submit([7] * prompt_len, temperature=0, ignore_eos=True)
            while handle.completion is None:
                engine.step()
                engine.check_integrity()
                for request in engine.core.scheduler.running:
                    assert request.blocks is not None
                    held = [request.blocks.num_held(group) for group in range(2)]
                    assert all(count <= bound for count, bound in zip(held, bounds, strict=True))
                    if request.num_output > 1:  # between steps: the positions before the next token that it will read
                        assert all(n <= -(-(w - 1) // 4) + 1 for n, w in zip(held, windows, strict=True))
            assert len(handle.completion.token_ids) == 256 - prompt_len
            assert engine.num_free_blocks == 8


def test_what_cannot_be_held_is_refused_with_the_pools_figures(folder_of: Callable[[Windows], Path]) -> None:
    with Engine.load(folder_of((None, 6)), kv_memory=10 * 64 + 5 * 128, max_tokens=8) as engine:
        assert engine.device.num_blocks[0] * 64 + engine.device.num_blocks[1] * 128 <= 10 * 64 + 5 * 128
        longest = engine.core.scheduler.max_len
        assert longest == engine.device.num_blocks[0] * 4
        with pytest.raises(
            PromptTooLong, match=rf"needs {longest // 4 + 1} KV blocks; the pool has {longest // 4} of 4"
        ):
            engine.submit([1] * longest)
    with Engine.load(folder_of((6,)), kv_memory=3 * 64, max_tokens=8) as engine:
        assert engine.core.scheduler.max_len == 12
        with pytest.raises(PromptTooLong, match="needs 4 KV blocks; the pool of the window 6 has 3 of 4 tokens"):
            engine.submit([1] * 12)
        with pytest.raises(
            PromptTooLong, match="needs 4 KV blocks; the pool of the window 6 has 3 of its 3 blocks free"
        ):
            engine.logits([1] * 13)
    with Engine.load(folder_of((6,)), kv_memory=6 * 64, max_tokens=8) as engine:
        assert engine.core.scheduler.max_len == 256


def test_a_failed_step_leaks_no_block_of_any_group(
    folder_of: Callable[[Windows], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Engine.load(folder_of((None, 13, 6, 1)), max_tokens=8) as engine:
        free = engine.num_free_blocks
        for steps in range(6):
            handles = [engine.submit(prompt, PARAMS) for prompt in prompts_of(random.Random(steps), 3)]
            for _ in range(steps):
                engine.step()
            with monkeypatch.context() as patch:
                patch.setattr(type(engine.device), "_run", lambda *_: (_ for _ in ()).throw(StepFailed("device fault")))
                with pytest.raises(StepFailed):
                    engine.step()
            engine.check_integrity()
            assert engine.num_free_blocks == free
            assert all(ended(handle).finish_reason is FinishReason.ERROR for handle in handles)
        windows = (None, 13, 6, 1)
        check(windows, engine.generate([[1, 2]], PARAMS)[0], [1, 2], PARAMS)


class Traffic(RuleBasedStateMachine):
    """Requests come, advance and are cancelled; pools may be scarce."""

    folder_of: Callable[[Windows], Path]

    @initialize(
        windows=st.sampled_from(GROUPS),
        max_tokens=st.integers(8, 20),
        blocks=st.integers(4, 40),
        max_batch=st.integers(1, 8),
    )
    def load(self, windows: Windows, max_tokens: int, blocks: int, max_batch: int) -> None:
        self.windows = windows
        memory = blocks * sum(group.block_bytes for group in kv_layout(windows).groups)
        folder = type(self).folder_of(windows)
        self.engine = Engine.load(folder, max_tokens=max_tokens, max_batch=max_batch, max_seq_len=100, kv_memory=memory)
        self.live: list[tuple[RequestHandle, list[int], SamplingParams]] = []

    @rule(prompt_len=st.integers(1, 70), output_len=st.integers(1, 40), seed=st.integers(0, 9))
    def add(self, prompt_len: int, output_len: int, seed: int) -> None:
        prompt = [(seed * 31 + i * i) % oracle.NUM_VALID for i in range(prompt_len)]
        params = SamplingParams(temperature=1, seed=seed, ignore_eos=True, max_tokens=output_len)
        if prompt_len >= self.engine.core.scheduler.max_len:
            with pytest.raises(PromptTooLong):
                self.engine.submit(prompt, params)
        else:
            self.live.append((self.engine.submit(prompt, params), prompt, params))

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.engine.step()
            self.engine.check_integrity()

    @rule(index=st.integers(0, 9))
    def cancel(self, index: int) -> None:
        if self.live:
            self.live[index % len(self.live)][0].cancel()

    @invariant()
    def is_sound(self) -> None:
        if hasattr(self, "engine"):
            self.engine.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        with self.engine as engine:
            for handle, prompt, params in self.live:
                completion = handle.result()
                if completion.finish_reason is FinishReason.CANCELLED:
                    continue
                tokens, _ = answer(self.windows, prompt, params, completion.seed)
                room = engine.core.scheduler.max_len - len(prompt)
                assert completion.error is None and list(completion.token_ids) == tokens[:room]
            engine.check_integrity()
            assert engine.num_free_blocks == sum(engine.device.num_blocks), "blocks leaked"


def test_any_traffic(folder_of: Callable[[Windows], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Traffic, "folder_of", staticmethod(folder_of), raising=False)
    run_state_machine_as_test(Traffic, settings=settings(max_examples=30, stateful_step_count=25, deadline=None))
