"""An engine's state at one moment as EngineStats."""

from llmc.runtime.kv.blocks import NO_BLOCK, BlockTable
from llmc.runtime.kv.counters import BlockUse
from llmc.runtime.loop.core import EngineCore
from llmc.runtime.process.serving import Serving
from llmc.runtime.process.stats import CacheStats, EngineStats, PoolStats, RequestStats


def snapshot(serving: Serving) -> EngineStats:
    """Between two steps."""
    scheduler = serving.core.scheduler
    requests = serving.requests.items()
    counted = serving.core.blocks.counters
    return EngineStats(
        running=len(scheduler.running),
        waiting=len(scheduler.waiting),
        step=serving.tally.last,
        kv=_pools(serving.core),
        cache=CacheStats(counted.hits, counted.misses, counted.evictions, counted.tokens_saved),
        requests=tuple(
            RequestStats(
                id=serving.submissions[key].request_id,
                sample=sample,
                state=request.state.value,
                latency=serving.submissions[key].latency,
                prompt_len=request.prompt_len,
                output_len=request.num_output,
                computed=request.num_computed,
                blocks=_held(serving.core, request.blocks),
            )
            for (key, sample), request in requests
        ),
        counters=serving.tally.counters(
            sum(request.num_preemptions for _, request in requests), scheduler.goodput.by_class
        ),
    )


def _pools(core: EngineCore) -> tuple[PoolStats, ...]:
    pools = []
    for pool in core.blocks.occupancy():
        free, cached = pool.count(BlockUse.FREE), pool.count(BlockUse.CACHED)
        pools.append(PoolStats(len(pool.uses), free, cached, len(pool.uses) - free - cached, pool.uses))
    return tuple(pools)


def _held(core: EngineCore, table: BlockTable | None) -> tuple[tuple[int, ...], ...]:
    if table is None:
        return ()
    groups = range(len(core.device.num_blocks))
    return tuple(tuple(block for block in table.block_ids(group) if block != NO_BLOCK) for group in groups)
