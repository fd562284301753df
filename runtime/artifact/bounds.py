"""Numbers that callers and manifests give: in their bounds, and plain ones of Python."""

from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """A numpy scalar as the Python one that it stands for; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def at_least(low: int, **fields: int | None) -> None:
    """Raises ValueError, with the field's name, for a value below `low`; None has no bound."""
    for name, value in fields.items():
        if value is not None and value < low:
            raise ValueError(f"{name} is {value}, must be at least {low}")
