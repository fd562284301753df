"""Figures of predictions as people read them; what is not known is 'unknown'."""

from __future__ import annotations


def short_place(where: str) -> str:
    """Module paths without what they share with all layers: `self_attn.q_proj, self_attn.k_proj`, at most three."""
    parts = list(dict.fromkeys(p.rpartition(".*.")[2] for p in where.split(" + ") if p))
    return ", ".join(parts[:3]) + (f" and {len(parts) - 3} more" if len(parts) > 3 else "")


def milliseconds(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds * 1e3:,.3f} ms" if seconds < 0.1 else f"{seconds * 1e3:,.0f} ms"


def microseconds(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds * 1e6:,.1f}"


def percent(fraction: float | None) -> str:
    return "unknown" if fraction is None else f"{fraction:.0%}"


def operations(count: int) -> str:
    """A count with a decimal prefix."""
    return _scaled(count, (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)))


def size(num_bytes: int) -> str:
    """Bytes with a decimal prefix."""
    text = _scaled(num_bytes, (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)))
    return f"{text} B" if 0 < num_bytes < 1000 else text


def _scaled(value: int, prefixes: tuple[tuple[str, int], ...]) -> str:
    """Three digits, and more of them only above the largest prefix."""
    for unit, scale in prefixes:
        if value >= scale:
            part = value / scale
            digits = 0 if part >= 99.95 else 1 if part >= 9.995 else 2
            return f"{part:,.{digits}f} {unit}"
    return str(value)
