"""Dimensions of tensors: integers, named symbols with an envelope, and integer polynomials over them.

`Sym("T", 1, 512)` is a size known only at run time; its envelope sizes memory at build. Sums and products of symbols
stay exact polynomials in a normal form, so two dims are equal exactly when `==` says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Sym:
    """A size bound at run time, with lo <= size <= hi (hi None: no bound known yet)."""

    name: str
    lo: int = 1
    hi: int | None = None


@dataclass(frozen=True)
class Poly:
    """A polynomial that is not a plain integer: ((monomial, coefficient), ...), sorted, no zero coefficients."""

    terms: tuple[tuple[tuple[Sym, ...], int], ...]

    def __add__(self, other: Dim) -> Dim:
        return _normal(_terms(self), _terms(other))

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        return self + -other

    def __rsub__(self, other: Dim) -> Dim:
        return -self + other

    def __mul__(self, other: Dim) -> Dim:
        product: dict[tuple[Sym, ...], int] = {}
        for mono_a, coef_a in _terms(self).items():
            for mono_b, coef_b in _terms(other).items():
                mono = tuple(sorted(mono_a + mono_b))
                product[mono] = product.get(mono, 0) + coef_a * coef_b
        return _normal(product)

    __rmul__ = __mul__

    def __str__(self) -> str:
        parts = []
        for mono, coef in self.terms:
            factors = [s.name for s in mono]
            if coef != 1 or not factors:
                factors.insert(0, str(coef))
            parts.append("*".join(factors))
        return "+".join(parts).replace("+-", "-")

    def symbols(self) -> set[Sym]:
        return {s for mono, _ in self.terms for s in mono}


Dim = int | Poly


def sym(name: str, lo: int = 1, hi: int | None = None) -> Poly:
    """The dim that is one symbol."""
    return Poly((((Sym(name, lo, hi),), 1),))


def symbols(dim: Dim) -> set[Sym]:
    return dim.symbols() if isinstance(dim, Poly) else set()


def evaluate(dim: Dim, binding: Mapping[str, int]) -> int:
    """The size under a binding of symbol names. KeyError names an unbound symbol."""
    if isinstance(dim, int):
        return dim
    total = 0
    for mono, coef in dim.terms:
        for s in mono:
            coef *= binding[s.name]
        total += coef
    return total


def divide(dim: Dim, by: Dim) -> Dim | None:
    """dim / by when that is exact for all sizes (by an integer or a single monomial); else None."""
    if isinstance(dim, int) and isinstance(by, int):
        return dim // by if by and dim % by == 0 else None
    by_terms = _terms(by)
    if len(by_terms) != 1:
        return 1 if dim == by else None
    ((by_mono, by_coef),) = by_terms.items()
    quotient: dict[tuple[Sym, ...], int] = {}
    for mono, coef in _terms(dim).items():
        rest = list(mono)
        for s in by_mono:
            if s not in rest:
                return None
            rest.remove(s)
        if coef % by_coef:
            return None
        quotient[tuple(rest)] = coef // by_coef
    return _normal(quotient)


def product(dims: tuple[Dim, ...]) -> Dim:
    total: Dim = 1
    for d in dims:
        total = total * d
    return total


def _terms(dim: Dim) -> dict[tuple[Sym, ...], int]:
    return {(): dim} if isinstance(dim, int) else dict(dim.terms)


def _normal(*parts: dict[tuple[Sym, ...], int]) -> Dim:
    merged: dict[tuple[Sym, ...], int] = {}
    for part in parts:
        for mono, coef in part.items():
            merged[mono] = merged.get(mono, 0) + coef
    merged = {mono: coef for mono, coef in merged.items() if coef}
    if not merged:
        return 0
    if merged.keys() == {()}:
        return merged[()]
    return Poly(tuple(sorted(merged.items(), key=lambda t: (-len(t[0]), t[0]))))
