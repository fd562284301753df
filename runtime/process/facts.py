"""What a loaded engine is: facts that stay while it is loaded, told once by the process that runs it."""

from dataclasses import dataclass

from llmc.runtime.artifact.manifest import ModelSummary


@dataclass(frozen=True)
class EngineFacts:
    """`name` is what the server calls it; `device` is cpu or cuda, `target` the engine's target that runs on it."""

    name: str
    folder: str
    model: ModelSummary
    producer: str  # of the engine folder: the version of llmc that built it
    version: str  # of llmc that runs it
    device: str
    target: str
    max_len: int  # tokens of the longest sequence, prompt and output together
    max_seq_len: int
    max_batch: int  # requests that run at once
    max_tokens: int  # of a step
    block_tokens: int
    num_blocks: tuple[int, ...]  # of every KV group's pool
    weights_bytes: int
    kv_bytes: int
    arena_bytes: int
    digest: str = ""  # of the engine's files
    token_seconds: float = 0.0  # that a step of one token took when it was loaded

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    @property
    def num_valid_tokens(self) -> int:
        return self.model.num_valid_tokens
