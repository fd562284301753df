"""How long a step may take, so that prompts get on and those who decode beside them do not stall."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from llmc.runtime.loop.request import Request
from llmc.runtime.loop.step_time import StepTimes, Work
from llmc.runtime.step.scheduling import RANK, LatencyClass, LatencyTarget

_LEAST = 1.25  # times a step without prompts: what those who decode must bear, lest prompts stand still
_SPARED_TOKENS = 5  # targets of a token: what a class saves up at most by steps shorter than it bears,
_SPARED_STEPS = 64  # and steps without prompts


@dataclass(frozen=True)
class Limits:
    """Seconds of a step: with `any` prompt in it, and with one that takes no longer than what was `spared`, `short`."""

    any: float
    spared: float
    short: float


NO_LIMITS = Limits(float("inf"), 0.0, float("inf"))


class TimeBudget:
    """Of steps predicted by `times`, for requests with these `targets`, at most `max_tokens` tokens in a step."""

    def __init__(self, targets: Mapping[LatencyClass, LatencyTarget], times: StepTimes, max_tokens: int) -> None:
        self._ranked = [targets[one] for one in sorted(RANK, key=RANK.__getitem__)]
        self._times = times
        self._max_tokens = max_tokens
        self._borrowed = [0.0] * len(RANK)  # seconds of what the classes can spare that prompts have taken

    def prompt_seconds(self, start: int, end: int) -> float:
        """To compute positions `start`..`end - 1` of a prompt with nobody beside it."""
        seconds, most = 0.0, self._max_tokens
        whole, rest = divmod(end - start, most)
        if whole:  # the mean step stands for all of them
            middle = start + (whole - 1) * most // 2
            seconds = whole * self._times.seconds(Work().and_prompt(middle, most))
        return seconds + (self._times.seconds(Work().and_prompt(end - rest, rest)) if rest else 0.0)

    def limits(self, decoding: Iterable[Request], work: Work, prompt: Request, now: float) -> "Limits":
        """For a step of `work`, which is that of those who decode, and of prompts, of which `prompt` is the most
        urgent.

        Each that decodes bears its class's `slowdown`, but no step longer than its target for a token while that can be
        met, and only the least once it is behind it. Where that makes a prompt of a more urgent class late that could
        be in time, they bear what their targets leave them. Beside that there is what they have spared.
        """
        plain = self._times.seconds(work)
        calm = pressed = spared = longest = float("inf")
        for rank, behind in {(request.rank, self._is_behind(request, now)) for request in decoding}:
            target = self._ranked[rank]
            bears = _bears(target, plain, behind)
            calm = min(calm, bears)
            gives_way = prompt.rank < rank and not behind
            pressed = min(pressed, max(bears, target.tpot) if gives_way else bears)
            spared = min(spared, 0.0 if behind else self._spared(rank, plain))
            longest = min(longest, target.tpot)
        limit = pressed if self._is_made_late(prompt, plain, calm, now) else calm
        return Limits(limit, spared, max(limit, min(longest, plain + spared)))

    def limit(self, limits: "Limits", prompt: Request) -> float:
        """Seconds for the step once there is a chunk of `prompt` in it: a short one may take what was spared."""
        whole = self.prompt_seconds(prompt.num_cached, len(prompt.tokens))
        return limits.short if whole <= limits.spared else limits.any

    def took(self, work: Work, seconds: float) -> None:
        """A step of `work` is over. What it took less than each class bears is spared, for a while."""
        plain = seconds if work.tokens == 0 else self._times.seconds(Work(work.rows, work.positions))
        for rank, target in enumerate(self._ranked):
            borrowed = self._borrowed[rank] + seconds - target.slowdown * plain
            self._borrowed[rank] = max(0.0, borrowed) if work.rows else 0.0

    def _spared(self, rank: int, plain: float) -> float:
        return min(_SPARED_TOKENS * self._ranked[rank].tpot, _SPARED_STEPS * plain) - self._borrowed[rank]

    def _is_behind(self, request: Request, now: float) -> bool:
        target, first = self._ranked[request.rank], request.first_token
        return first is not None and now > first + target.tpot * request.num_output

    def _is_made_late(self, prompt: Request, plain: float, limit: float, now: float) -> bool:
        """Whether the prompt can be in time, but not with what `limit` leaves it of each step."""
        deadline = prompt.submitted + self._ranked[prompt.rank].ttft
        alone = self.prompt_seconds(prompt.num_computed, len(prompt.tokens))
        share = 1 - plain / limit
        return prompt.first_token is None and now + alone <= deadline < now + alone / share


def _bears(target: LatencyTarget, plain: float, behind: bool) -> float:
    """The longest step for one that decodes, where a step without prompts takes `plain`."""
    if plain >= target.tpot:
        return target.slowdown * plain  # its target is out of reach, whatever prompts do
    least = min(_LEAST, target.slowdown) * plain
    return least if behind else max(least, min(target.slowdown * plain, target.tpot))
