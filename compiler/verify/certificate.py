"""certificate.json: how far an engine is from its source, as its build measured it. docs/engine.md says how.

It lies in the engine's folder and is no file of the manifest, because its last digits are those of torch's sums, which
differ from machine to machine, and an engine's own bytes do not. It names the engine that it is of by the digest of all
its files, and has a checksum of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llmc.compiler.verify.logits import Verdict, Worst
from llmc.ir.formats import Scheme
from llmc.ir.types import DType
from llmc.runtime.artifact.artifact import EngineFiles
from llmc.runtime.artifact.hashing import digest
from llmc.runtime.artifact.manifest import Manifest
from llmc.runtime.artifact.strict_json import JsonMismatch, from_plain, parse_json, render_json, to_plain
from llmc.runtime.errors import ChecksumMismatch, ManifestInvalid

CERTIFICATE = "certificate.json"
FORMAT = 1
_DIGITS = 6


def rounded(figure: float) -> float:
    """To the digits that a certificate has."""
    return float(f"{figure:.{_DIGITS - 1}e}")


@dataclass(frozen=True)
class Figures:
    """Of the engine's answers against the source's, teacher-forced. KL in nats; `worst`: where it is largest;
    perplexities of the text itself."""

    positions: int
    kl_mean: float
    kl_p99: float
    kl_max: float
    worst: Worst
    top1_agreement: float
    relative_error: float
    perplexity: float
    source_perplexity: float

    @classmethod
    def of(cls, verdict: Verdict) -> Figures | None:
        """None where they are no numbers."""
        found = (
            verdict.mean_kl,
            verdict.p99_kl,
            verdict.max_kl,
            verdict.top1_agreement,
            verdict.relative_error,
            verdict.perplexity,
            verdict.reference_perplexity,
        )
        finite = [rounded(x) for x in found if x is not None and math.isfinite(x)]
        if len(finite) < len(found):
            return None
        mean, p99, most, same, error, ours, theirs = finite
        return cls(verdict.num_positions, mean, p99, most, verdict.worst, same, error, ours, theirs)


@dataclass(frozen=True)
class LayerError:
    """Of a linear's weight as the engine holds it: ||W' - W|| / ||W||, and what that does to its output,
    ||x (W' - W)|| / ||x W|| over inputs x of the source (None where its module is not known by this name)."""

    module: str
    scheme: str
    weight_error: float
    output_error: float | None


@dataclass(frozen=True)
class Certificate:
    """`engine`: digest of its files. `tokens` of the text with the digest `text`. `measured_on`: which target, or
    which stand-in for one; empty where nothing was measured. `remarks`: what was not measured and why, a line each."""

    format: int
    engine: str
    source: str
    text: str
    tokens: int
    measured_on: str
    figures: Figures | None
    layers: tuple[LayerError, ...]
    remarks: tuple[str, ...]


def write_certificate(folder: Path, certificate: Certificate) -> None:
    plain = to_plain(certificate)
    (folder / CERTIFICATE).write_bytes(render_json({**plain, "checksum": digest(render_json(plain))}))


def read_certificate(folder: Path, manifest: Manifest) -> Certificate | None:
    """None where the engine has none. Raises ManifestInvalid, ChecksumMismatch for one that was changed, or is of
    another engine."""
    path = folder / CERTIFICATE
    if not path.is_file():
        return None
    try:
        plain = parse_json(path.read_bytes())
        if not isinstance(plain, dict):
            raise JsonMismatch("expected an object")
        checksum = plain.pop("checksum", None)
        if checksum != digest(render_json(plain)):
            raise ChecksumMismatch(f"{path}: damaged or edited: its content has another checksum than stands in it")
        found = from_plain(Certificate, plain)
    except JsonMismatch as error:
        raise ManifestInvalid(f"{path}: {error}") from error
    if found.format != FORMAT:
        raise ManifestInvalid(f"{path}: format {found.format}, this llmc reads {FORMAT}")
    if found.engine != (ours := EngineFiles(folder, manifest).files_digest):
        raise ChecksumMismatch(f"{path}: is of the engine {found.engine[:16]}..., this one is {ours[:16]}...")
    return found


# What float32 sums of torch, in whatever order, may do to a figure of an engine that is all but exact.
_NOISE = {
    "kl_mean": 1e-8,
    "kl_p99": 1e-8,
    "kl_max": 1e-7,
    "relative_error": 1e-4,
    "perplexity": 0,
    "source_perplexity": 0,
}
_TIES = 2  # positions whose two best tokens change places with the last bit of a logit


def differences(stated: Figures, found: Figures, digits: int) -> Iterator[str]:
    """Each figure that is not the stated one to so many digits."""
    allowed = {name: 10.0 ** (1 - digits) * getattr(stated, name) + noise for name, noise in _NOISE.items()}
    allowed["top1_agreement"] = _TIES / stated.positions
    for name, most in allowed.items():
        a, b = getattr(stated, name), getattr(found, name)
        if not abs(a - b) <= most:
            yield f"{name} is {b:.{_DIGITS}g}, the certificate says {a:.{_DIGITS}g}"


def reproducible_digits(certificate: Certificate, found: Certificate) -> int | None:
    """To how many digits a second measurement is the first: None where it was of other arithmetic. Linears of int8
    inputs give the same integers on every target; others the same bits on one target alone, and the closer an engine is
    to its source, the more of the little that is left is torch's own rounding."""
    if all(Scheme.named(layer.scheme).operand.element is DType.I8 for layer in found.layers):
        return 5
    return 3 if certificate.measured_on == found.measured_on else None
