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


def size(num_bytes: int) -> str:
    """Bytes with a decimal prefix."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if num_bytes >= scale:
            return (
                f"{num_bytes / scale:.3g} {unit}" if num_bytes < 999.5 * scale else f"{num_bytes / scale:,.0f} {unit}"
            )
    return f"{num_bytes} B" if num_bytes else "0"
