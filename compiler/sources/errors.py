"""The one exception a model source raises for bad input."""


class SourceError(Exception):
    """A model cannot be read or states something unsupported: one line that says what, where and why."""
