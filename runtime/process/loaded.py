"""The facts of an engine that has been loaded."""

from importlib.metadata import version

from llmc.runtime.loop.core import EngineCore
from llmc.runtime.process.facts import EngineFacts


def facts_of(name: str, core: EngineCore, token_seconds: float) -> EngineFacts:
    artifact, device = core.artifact, core.device
    limits, memory = device.limits, device.memory
    return EngineFacts(
        name=name,
        folder=str(artifact.folder),
        model=artifact.manifest.model,
        digest=artifact.files_digest,
        producer=artifact.manifest.producer.get("llmc", ""),
        version=version("llmc"),
        device=artifact.target.kind,
        target=artifact.target.name,
        max_len=core.max_len,
        max_seq_len=limits.max_seq_len,
        max_batch=core.scheduler.max_batch,
        max_tokens=limits.max_tokens,
        block_tokens=limits.block_tokens,
        num_blocks=device.num_blocks,
        weights_bytes=memory.weights_bytes,
        kv_bytes=memory.kv_bytes,
        arena_bytes=memory.arena_bytes,
        token_seconds=token_seconds,
    )
