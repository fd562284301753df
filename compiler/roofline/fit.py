"""What a model lacks to run on one machine of a target, and what it would run on."""

from __future__ import annotations

from dataclasses import dataclass

from llmc.codegen.cuda.target.gpus import GPUS
from llmc.codegen.kv_groups import BLOCK_TOKENS
from llmc.compiler.roofline.predict import Prediction
from llmc.compiler.targets.backend import Backend
from llmc.compiler.targets.find import find_target

_GB = 1e9


@dataclass(frozen=True)
class Shortage:
    """Of one sequence on one GPU. `beside_weights`: scratch, and keys and values of the sequence. `longest`: the most
    tokens of a sequence that fit; 0: the weights do not. `fits`: targets that have room for it. `gpus`: how many of the
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


def shortage(prediction: Prediction, target: Backend, dtype: str, length: int, chunk: int) -> Shortage | None:
    """None where a sequence of `length` tokens fits, or the target's memory is not known."""
    usable, weights = target.usable_bytes, prediction.weight_bytes
    if usable is None or prediction.largest_batch != 0:
        return None
    scratch = prediction.arena_bytes_per_token * chunk + prediction.arena_bytes_per_row
    block = prediction.kv_bytes_per_token * BLOCK_TOKENS
    beside = scratch + block * -(-length // BLOCK_TOKENS)
    return Shortage(
        target=target.name,
        weight_bytes=weights,
        beside_weights=beside,
        usable_bytes=usable,
        longest=max(0, (usable - weights - scratch) // block * BLOCK_TOKENS) if block else 0,
        fits=tuple(name for name in GPUS if weights + beside <= (find_target(name).usable_bytes or 0)),
        gpus=-(-(weights + beside) // usable),
        in_bf16=dtype == "f32" and weights // 2 + beside <= usable,
    )
