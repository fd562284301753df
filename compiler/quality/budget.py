"""What a choice of formats may cost: bits for each weight, or KL from the source. As text: bits=4.8, kl=0.05."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TEXT = re.compile(r"(bits|kl)=(\d+(?:\.\d+)?(?:e-?\d+)?)")


@dataclass(frozen=True)
class Budget:
    """One of the two: `bits` of a weight in the mean over all linears, scales counted; `kl` in nats, in the mean."""

    bits: float | None = None
    kl: float | None = None

    @classmethod
    def named(cls, text: str) -> Budget:
        """ValueError says what there is."""
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ValueError(f"expected bits=N (for each weight) or kl=X (from the model), got {text!r}")
        return cls(**{found[1]: float(found[2])})

    def __str__(self) -> str:
        return f"bits={self.bits:g}" if self.bits is not None else f"kl={self.kl:g}"
