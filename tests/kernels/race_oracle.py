"""The race of templates/cpu/race.h in numpy, from its definition."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(key: int, counters: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    """Words uint64[n, 4], each below 2^32, of counters [n, 4]."""
    c = np.array(counters, np.uint64).T
    k = [key & 0xFFFFFFFF, key >> 32]
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = np.stack(
            [b >> _HALF ^ c[1] ^ np.uint64(k[0]), b & _LOW, a >> _HALF ^ c[3] ^ np.uint64(k[1]), a & _LOW], axis=0
        )
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c.T


def times(seed: int, sample_index: int, position: int, valid: int) -> npt.NDArray[np.float64]:
    """The exponential variate of each id, [valid]."""
    ids = np.arange(valid)
    counters = np.zeros((valid, 4), np.uint64)
    counters[:, 0], counters[:, 1], counters[:, 2] = position, sample_index, ids // 64 * 16 + ids % 16
    words = []
    for draw in range(2):
        counters[:, 3] = draw
        words.append(philox(seed, counters)[ids, ids // 16 % 4])
    n = words[0] << np.uint64(20) | words[1] >> np.uint64(12)
    return np.asarray(-np.log1p(-(n.astype(np.float64) + 0.5) * 2.0**-52))
