"""Engines of tiny models, as tests/e2e has them."""

from transformers.utils import logging

from tests.e2e.shared_engines import engines

logging.disable_progress_bar()
__all__ = ["engines"]
