"""What ends a batch, in one line."""


class BatchRefused(Exception):
    """The files are not what this run could go on with; nothing was changed."""


class BatchStopped(Exception):
    """The engine is gone, or the input changed: what was answered is kept, and the same command goes on from there."""
