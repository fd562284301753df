"""A tiny model's engine with its tokenizer, which other tests have built."""

from __future__ import annotations

from tests.e2e.conftest import speaking
from tests.e2e.shared_engines import engines

__all__ = ["engines", "speaking"]
