"""Raw logits of a step's rows, for scoring and verifying: copied out of the plan's own buffer."""

from typing import Any

import numpy as np

from llmc.runtime.artifact.plan import Buffer
from llmc.runtime.cuda.driver.driver import call, driver
from llmc.runtime.step.arrays import StepBuffers

_FLOAT = 4


class LogitsCopy:
    """Rows of f32, `buffer.row_bytes` apart at `address`, into a step's [R, vocab_size]."""

    def __init__(self, buffer: Buffer, address: int, vocab_size: int) -> None:
        self._row_bytes = buffer.row_bytes
        self._address = address
        self._vocab_size = vocab_size

    def fetch(self, step: StepBuffers, stream: Any) -> None:
        """Copy, if the step asks for logits; waits for the stream."""
        rows = step.num_rows
        if step.logits is None or not rows:
            return
        copied = np.empty((rows, self._row_bytes // _FLOAT), np.float32)
        call(driver().cuMemcpyDtoHAsync, copied.ctypes.data, self._address, copied.nbytes, stream)
        call(driver().cuStreamSynchronize, stream)
        step.logits[:rows] = copied[:, : self._vocab_size]
