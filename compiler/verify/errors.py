"""What a comparison of an engine with its source can end in, beside a verdict."""


class VerificationError(Exception):
    """There is nothing to compare, or no comparison; the message is one line for people."""
