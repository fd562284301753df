"""What a model lacks to run on one GPU, and what it would run on."""

from __future__ import annotations

from dataclasses import dataclass

from llmc.codegen.cuda.target.assumptions import ASSUMED
from llmc.codegen.cuda.target.gpus import GPUS
from llmc.compiler.roofline.predict import BLOCK_TOKENS, Prediction

_GB = 1e9


@dataclass(frozen=True)
class Shortage:
    """Of one sequence on one GPU. `beside_weights`: scratch, and keys and values of the sequence. `longest`: the most
    tokens of a sequence that fit; 0: the weights do not. `fits`: GPUs that have room for it. `gpus`: how many of the
    one asked for hold as much together. `in_bf16`: it fits with half the bytes a weight."""

    target: str
    weight_bytes: int
    beside_weights: int
    usable_bytes: int
    longest: int
    fits: tuple[str, ...]
    gpus: int
    in_bf16: bool

    def lines(self, model: str, dtype: str, length: int) -> tuple[str, str]:
        """What does not fit, and what would."""
        weights, beside, usable = (n / _GB for n in (self.weight_bytes, self.beside_weights, self.usable_bytes))
        lacks = (
            f"{model} in {dtype} does not fit on one {self.target}: {weights:.1f} GB of weights and {beside:.1f} GB "
            f"for a sequence of {length:,} tokens, of {usable:.1f} GB"
        )
        ways = [f"on {' or '.join(self.fits)}"] if self.fits else []
        ways += ["with --dtype bf16"] if self.in_bf16 else []
        ways += [f"with --length {self.longest} or less"] if self.longest else []
        together = f"{self.gpus} of {self.target} have the memory, but an engine runs on one GPU"
        return lacks, f"it would fit {', '.join(ways)}; {together}" if ways else f"it fits on no GPU here; {together}"


def shortage(prediction: Prediction, dtype: str, length: int, chunk: int) -> Shortage | None:
    """None where a sequence of `length` tokens fits, or the target's memory is not known."""
    if prediction.memory_bytes is None or prediction.largest_batch != 0:
        return None
    usable, weights = _usable(prediction.memory_bytes), prediction.weight_bytes
    scratch = prediction.arena_bytes_per_token * chunk + prediction.arena_bytes_per_row
    block = prediction.kv_bytes_per_token * BLOCK_TOKENS
    beside = scratch + block * -(-length // BLOCK_TOKENS)
    longest = max(0, (usable - weights - scratch) // block * BLOCK_TOKENS) if block else 0
    return Shortage(
        target=prediction.target,
        weight_bytes=weights,
        beside_weights=beside,
        usable_bytes=usable,
        longest=longest,
        fits=tuple(gpu.name for gpu in GPUS.values() if weights + beside <= _usable(gpu.memory_bytes)),
        gpus=-(-(weights + beside) // usable),
        in_bf16=dtype == "f32" and weights // 2 + beside <= usable,
    )


def _usable(memory_bytes: int) -> int:
    return int(memory_bytes * ASSUMED.memory)
