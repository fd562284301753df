"""The state of a server as the page draws it: numbers, lengths and states, never a text."""

from typing import Any

from llmc.runtime.process.facts import EngineFacts
from llmc.runtime.process.stats import EngineStats, PoolStats, RequestStats
from llmc.serve.server import Model, Server

_MOST_BLOCKS = 1 << 15  # of a pool that is drawn block by block
_MOST_REQUESTS = 256


def live_body(server: Server) -> dict[str, Any]:
    """Of every model, by its name."""
    refusal = server.not_ready
    return {
        "state": "ready" if refusal is None else refusal.code,
        "models": {name: _model(model) for name, model in server.models.items()},
    }


def _model(model: Model) -> dict[str, Any]:
    stats: EngineStats = model.engine.stats()
    step, cache, counters = stats.step, stats.cache, stats.counters
    requests = stats.requests[:_MOST_REQUESTS]
    return {
        "facts": _facts(model.engine.facts),
        "chat": model.chat_facts,
        "running": stats.running,
        "waiting": stats.waiting,
        "step": {"kind": step.kind, "tokens": step.tokens, "rows": step.rows, "seconds": step.seconds},
        "pools": [_pool(pool) for pool in stats.kv],
        "cache": {"hits": cache.hits, "misses": cache.misses, "tokens_saved": cache.tokens_saved},
        "requests": [_request(request) for request in requests],
        "counters": {
            "finished": sum(counters.finished.values()),
            "cancelled": counters.cancelled,
            "failed": counters.failed,
            "preempted": counters.preempted,
            "prompt_tokens": counters.prompt_tokens,
            "generated_tokens": counters.generated_tokens,
            "goodput": dict(counters.goodput),
        },
        "histograms": model.metrics.histograms(),
    }


def _facts(facts: EngineFacts) -> dict[str, Any]:
    return {
        "architecture": facts.model.architecture,
        "dtype": facts.model.dtype,
        "device": facts.device,
        "target": facts.target,
        "max_len": facts.max_len,
        "max_batch": facts.max_batch,
        "block_tokens": facts.block_tokens,
        "weights_bytes": facts.weights_bytes,
        "kv_bytes": facts.kv_bytes,
        "version": facts.version,
    }


def _pool(pool: PoolStats) -> dict[str, Any]:
    """`map`: a digit for each block, as in PoolStats; empty where nobody made one, or nobody could see it."""
    shown = pool.map if len(pool.map) <= _MOST_BLOCKS else b""
    return {
        "total": pool.total,
        "free": pool.free,
        "cached": pool.cached,
        "held": pool.held,
        "map": bytes(48 + state for state in shown).decode(),
    }


def _request(request: RequestStats) -> dict[str, Any]:
    """What the cache saved a request is its owner's to know: not how much of its prompt is computed."""
    return {
        "id": request.id,
        "sample": request.sample,
        "state": request.state,
        "latency": request.latency,
        "prompt_len": request.prompt_len,
        "output_len": request.output_len,
        "blocks": request.blocks,
    }
