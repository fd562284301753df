"""The one exception that capture raises for a model it cannot express."""


class CaptureError(Exception):
    """A model that llmc cannot capture: one line that says what, in which module, and what to do about it."""


class TransformersFailed(CaptureError):
    """Code of transformers raised, over a setting of the config or because it cannot be traced."""
