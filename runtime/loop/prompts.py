"""Token ids that come from outside, before they index anything."""

from collections.abc import Sequence

import numpy as np

from llmc.runtime.errors import InvalidParameter


def check_ids(ids: Sequence[int], vocab_size: int) -> None:
    """Raises InvalidParameter unless `ids` is a list of ids of the vocabulary, at least one."""
    if not isinstance(ids, Sequence | np.ndarray) or isinstance(ids, str | bytes | bytearray):
        raise InvalidParameter(f"a prompt is text or a list of token ids, got {type(ids).__name__}")
    if len(ids) == 0:
        raise InvalidParameter("the prompt is empty")
    for at, token in enumerate(ids):
        if not isinstance(token, int | np.integer) or isinstance(token, bool) or not 0 <= token < vocab_size:
            raise InvalidParameter(f"token {at} of the prompt: {token!r} is not an id in 0..{vocab_size - 1}")
