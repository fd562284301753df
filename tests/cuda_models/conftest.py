"""Engines of tiny models, as tests/e2e has them."""

from e2e.shared_engines import engines
from transformers.utils import logging

logging.disable_progress_bar()
__all__ = ["engines"]
