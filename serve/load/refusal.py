"""What `llmc bench` refuses before anything is measured."""

from llmc.runtime.errors import RuntimeFailure


class BenchRefused(RuntimeFailure):
    """An option, a trace or a server that no figure can come from; the message is one line."""
