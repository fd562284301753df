"""How long a step may take, so that prompts get on and those who decode beside them do not stall."""

from collections.abc import Iterable, Mapping

from llmc.runtime.loop.request import Request
from llmc.runtime.loop.step_time import StepTimes, Work
from llmc.runtime.step.scheduling import LatencyClass, LatencyTarget

_LEAST = 1.25  # times a step without prompts: what those who decode must bear, lest prompts stand still


class TimeBudget:
    """Of steps predicted by `times`, for requests with these `targets`, at most `max_tokens` tokens in a step."""

    def __init__(self, targets: Mapping[LatencyClass, LatencyTarget], times: StepTimes, max_tokens: int) -> None:
        self._targets = targets
        self._times = times
        self._max_tokens = max_tokens

    def prompt_seconds(self, start: int, end: int) -> float:
        """To compute positions `start`..`end - 1` of a prompt with nobody beside it."""
        seconds, most = 0.0, self._max_tokens
        whole, rest = divmod(end - start, most)
        if whole:  # the mean step stands for all of them
            middle = start + (whole - 1) * most // 2
            seconds = whole * self._times.seconds(Work().and_prompt(middle, most))
        return seconds + (self._times.seconds(Work().and_prompt(end - rest, rest)) if rest else 0.0)

    def limit(self, decoding: Iterable[Request], work: Work, prompt: Request, now: float) -> float:
        """Seconds for a step of `work`, which is that of those who decode, and of prompts, of which `prompt` is the
        most urgent.

        Each that decodes bears its class's `slowdown`, but no step longer than its target for a token while that can be
        met, and only the least once it is behind it. Where that makes a prompt of a more urgent class late that could
        be in time, they bear what their targets leave them.
        """
        plain = self._times.seconds(work)
        calm = pressed = float("inf")
        for request in decoding:
            target = self._targets[request.latency]
            behind = self._is_behind(request, target, now)
            bears = _bears(target, plain, behind)
            calm = min(calm, bears)
            gives_way = prompt.rank < request.rank and not behind
            pressed = min(pressed, max(bears, target.tpot) if gives_way else bears)
        return pressed if self._is_made_late(prompt, plain, calm, now) else calm

    def _is_behind(self, request: Request, target: LatencyTarget, now: float) -> bool:
        return request.first_token is not None and now > request.first_token + target.tpot * request.num_output

    def _is_made_late(self, prompt: Request, plain: float, limit: float, now: float) -> bool:
        """Whether the prompt can be in time, but not with what `limit` leaves it of each step."""
        deadline = prompt.submitted + self._targets[prompt.latency].ttft
        alone = self.prompt_seconds(prompt.num_computed, len(prompt.tokens))
        share = 1 - plain / limit
        return prompt.first_token is None and now + alone <= deadline < now + alone / share


def _bears(target: LatencyTarget, plain: float, behind: bool) -> float:
    """The longest step for one that decodes, where a step without prompts takes `plain`."""
    if plain >= target.tpot:
        return target.slowdown * plain  # its target is out of reach, whatever prompts do
    least = min(_LEAST, target.slowdown) * plain
    return least if behind else max(least, min(target.slowdown * plain, target.tpot))
