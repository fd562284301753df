"""What is counted, for Prometheus: vLLM's names where they mean the same, `llmc:` for what it does not have."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from math import inf

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from llmc.runtime.loop.results import Completion
from llmc.runtime.process.facts import EngineFacts
from llmc.runtime.process.protocol import ServedEngine
from llmc.runtime.process.stats import EngineStats
from llmc.serve.resident import resident_bytes

OUTCOMES = ("finished", "cancelled", "failed", "refused")
_LABELS = ("model_name", "engine")
_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)
_TPOT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
_SAMPLES = (1, 2, 5, 10, 16)


class Metrics:
    """Of one server. What an engine counts itself is read when somebody looks."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._engines: Mapping[str, ServedEngine] = {}
        self._refused = Counter(
            "llmc:http_refused", "Requests answered with an error.", ["status"], registry=self.registry
        )
        self._started = self._counter("llmc:requests_started", "Requests that an engine took.")
        self._ended = Counter(
            "llmc:requests_ended",
            "By outcome; at idle they add up to those started.",
            [*_LABELS, "how"],
            registry=self.registry,
        )
        self._success = Counter(
            "vllm:request_success", "Answers by why they ended.", [*_LABELS, "finished_reason"], registry=self.registry
        )
        self._ttft = self._histogram("vllm:time_to_first_token_seconds", "Arrival to first token.", _TTFT)
        self._itl: dict[str, Distribution] = {}
        self._tpot = self._histogram("vllm:request_time_per_output_token_seconds", "Mean of an answer.", _TPOT)
        self._e2e = self._histogram("vllm:e2e_request_latency_seconds", "Arrival to end.", _LATENCY)
        self._decode = self._histogram("vllm:request_decode_time_seconds", "First token to end.", _LATENCY)
        self._prompt = self._histogram("vllm:request_prompt_tokens", "Tokens of prompts.", _TOKENS)
        self._output = self._histogram("vllm:request_generation_tokens", "Tokens of answers.", _TOKENS)
        self._n = self._histogram("vllm:request_params_n", "Answers asked for.", _SAMPLES)
        self.registry.register(self)  # for `collect`

    def serve(self, engines: Mapping[str, ServedEngine]) -> None:
        self._engines = engines

    def refused(self, status: int) -> None:
        self._refused.labels(str(status)).inc()

    def of(self, model: str) -> "ModelMetrics":
        return ModelMetrics(
            started=self._started.labels(model, "0"),
            ended={how: self._ended.labels(model, "0", how) for how in OUTCOMES},
            success={reason: self._success.labels(model, "0", reason) for reason in ("stop", "length")},
            ttft=self._ttft.labels(model, "0"),
            itl=self._itl.setdefault(model, Distribution(_TPOT)),
            tpot=self._tpot.labels(model, "0"),
            e2e=self._e2e.labels(model, "0"),
            decode=self._decode.labels(model, "0"),
            prompt=self._prompt.labels(model, "0"),
            output=self._output.labels(model, "0"),
            n=self._n.labels(model, "0"),
        )

    def text(self) -> bytes:
        return bytes(generate_latest(self.registry))

    def collect(self) -> Iterable[Metric]:
        for make, name, help_text, read in _OF_ENGINES:
            family = make(name, help_text, labels=_LABELS)
            for model, engine in self._engines.items():
                family.add_metric([model, "0"], read(engine.facts, engine.stats()))
            yield family
        yield self._gaps()
        yield self._steps()
        resident = "Of the server and the engines' process."
        yield GaugeMetricFamily("process_resident_memory_bytes", resident, value=resident_bytes())
        yield self._info()

    def _gaps(self) -> Metric:
        name, what = "vllm:inter_token_latency_seconds", "Between two outputs of a stream."
        family = HistogramMetricFamily(name, what, labels=_LABELS)
        for model, gaps in self._itl.items():
            family.add_metric([model, "0"], gaps.buckets, gaps.sum)
        return family

    def _steps(self) -> Metric:
        """How many steps, and their tokens; how these are distributed is not known."""
        family = HistogramMetricFamily("vllm:iteration_tokens_total", "Tokens of a step.", labels=_LABELS)
        for model, engine in self._engines.items():
            counters = engine.stats().counters
            tokens = counters.prompt_tokens + counters.generated_tokens
            family.add_metric([model, "0"], [("+Inf", counters.steps)], tokens)
        return family

    def _info(self) -> Metric:
        info = GaugeMetricFamily(
            "vllm:cache_config_info", "The KV cache.", labels=[*_LABELS, "block_size", "num_gpu_blocks", "kv_bytes"]
        )
        for model, engine in self._engines.items():
            facts = engine.facts
            info.add_metric([model, "0", str(facts.block_tokens), str(sum(facts.num_blocks)), str(facts.kv_bytes)], 1)
        return info

    def _counter(self, name: str, help_text: str) -> Counter:
        return Counter(name, help_text, _LABELS, registry=self.registry)

    def _histogram(self, name: str, help_text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(name, help_text, _LABELS, buckets=buckets, registry=self.registry)


class Distribution:
    """A histogram of what is observed with every token, by one thread: without locks, and found by halving."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    @property
    def buckets(self) -> list[tuple[str, float]]:
        """Upper bounds, and how many lie below."""
        return list(zip(map(floatToGoString, (*self._bounds, inf)), accumulate(self._counts), strict=True))


class ModelMetrics:
    """Of one model: the counters with its name in them."""

    def __init__(
        self,
        started: Counter,
        ended: Mapping[str, Counter],
        success: Mapping[str, Counter],
        ttft: Histogram,
        itl: "Distribution",
        tpot: Histogram,
        e2e: Histogram,
        decode: Histogram,
        prompt: Histogram,
        output: Histogram,
        n: Histogram,
    ) -> None:
        self._started, self._ended, self._success = started, ended, success
        self._ttft, self._itl, self._tpot = ttft, itl, tpot
        self._e2e, self._decode, self._prompt, self._output, self._n = e2e, decode, prompt, output, n

    def histograms(self) -> dict[str, list[tuple[float, float]]]:
        """Of TTFT and TPOT: upper bounds in seconds and counts up to them. The last bound, infinity, is left out."""
        return {name: _buckets(histogram) for name, histogram in (("ttft", self._ttft), ("tpot", self._tpot))}

    def begin(self, num_prompt: int, n: int) -> None:
        self._started.inc()
        self._prompt.observe(num_prompt)
        self._n.observe(n)

    def gap(self, seconds: float) -> None:
        self._itl.observe(seconds)

    def end(self, how: str, completions: Sequence[Completion]) -> None:
        """`how`: finished, cancelled, failed; completions only of a request that finished."""
        self._ended[how].inc()
        for completion in completions:
            timing, num_tokens = completion.timing, len(completion.token_ids)
            if (success := self._success.get(completion.finish_reason.value)) is not None:
                success.inc()
            self._ttft.observe(timing.ttft)
            self._e2e.observe(timing.total)
            self._decode.observe(timing.total - timing.ttft)
            self._output.observe(num_tokens)
            if (tpot := timing.tpot(num_tokens)) is not None:
                self._tpot.observe(tpot)


def _buckets(histogram: Histogram) -> list[tuple[float, float]]:
    samples = [sample for metric in histogram.collect() for sample in metric.samples if sample.name.endswith("_bucket")]
    return [(float(s.labels["le"]), s.value) for s in samples if s.labels["le"] != "+Inf"]


def _usage(facts: EngineFacts, stats: EngineStats) -> float:
    """Of the fullest pool, the part that requests hold."""
    return max((pool.held / pool.total for pool in stats.kv if pool.total), default=0.0)


_G, _C = GaugeMetricFamily, CounterMetricFamily
_OF_ENGINES = (
    (_G, "vllm:num_requests_running", "Requests that hold KV blocks.", lambda f, s: s.running),
    (_G, "vllm:num_requests_waiting", "Requests in the queue.", lambda f, s: s.waiting),
    (_G, "vllm:kv_cache_usage_perc", "KV blocks held, from 0 to 1.", _usage),
    (_G, "llmc:kv_blocks_free", "KV blocks that hold nothing.", lambda f, s: sum(pool.free for pool in s.kv)),
    (_G, "llmc:kv_blocks_cached", "KV blocks kept for prefixes.", lambda f, s: sum(pool.cached for pool in s.kv)),
    (_C, "vllm:num_preemptions", "Requests that gave up their blocks.", lambda f, s: s.counters.preempted),
    (_C, "vllm:prompt_tokens", "Tokens of prompts.", lambda f, s: s.counters.prompt_tokens),
    (_C, "vllm:generation_tokens", "Tokens generated.", lambda f, s: s.counters.generated_tokens),
    (
        _C,
        "vllm:prefix_cache_queries",
        "Tokens looked for in the prefix cache.",
        lambda f, s: (s.cache.hits + s.cache.misses) * f.block_tokens,
    ),
    (_C, "vllm:prefix_cache_hits", "Tokens found there.", lambda f, s: s.cache.tokens_saved),
    (_C, "llmc:prefix_cache_evictions", "Cached blocks given up.", lambda f, s: s.cache.evictions),
    (_C, "llmc:engine_requests_started", "As the engine counts, samples apart.", lambda f, s: s.counters.started),
    (_C, "llmc:engine_requests_finished", "Stop or length.", lambda f, s: sum(s.counters.finished.values())),
    (_C, "llmc:engine_requests_cancelled", "By clients.", lambda f, s: s.counters.cancelled),
    (_C, "llmc:engine_requests_failed", "By faults.", lambda f, s: s.counters.failed),
)
