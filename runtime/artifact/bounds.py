"""Bounds of the manifest's numbers."""


def at_least(low: int, **fields: int | None) -> None:
    """Raises ValueError, with the field's name, for a value below `low`; None has no bound."""
    for name, value in fields.items():
        if value is not None and value < low:
            raise ValueError(f"{name} is {value}, must be at least {low}")
