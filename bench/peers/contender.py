"""What the race asks of everyone in it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from bench.cpu.workload import Workload

Logits = npt.NDArray[np.float32]


class PeerError(RuntimeError):
    """A peer could not be installed, converted for, or measured; the message says which and why."""


class Contender(Protocol):
    """An inference program with a model loaded, or ready to load."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def model(self) -> Path:
        """Its file or folder."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that every decode step reads."""

    @property
    def int8(self) -> bool:
        """Whether it multiplies integers."""

    @property
    def pid(self) -> int | None:
        """Of the process that does the work, where it is not this one or a child that ends."""

    def measure(self, workload: Workload, seed: int) -> float:
        """Tokens per second of one run, after a warm-up that is not counted."""

    def logits(self, tokens: Path, out: Path) -> Logits | None:
        """[sequences, T, vocab] of the sequences in the .npy file `tokens`; None where it does not give them.

        `out`: a file that may hold them.
        """

    def close(self) -> None: ...
