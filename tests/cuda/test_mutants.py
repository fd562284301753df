"""Mutation testing as far as every run can afford it: nothing is left out, no excuse is stale, a mutant is caught.
mutate.py (`make soak`) runs all of them."""

from __future__ import annotations

import re

import pytest
from harmless import HARMLESS
from mutants import HEADERS, Kind, Source, mutants, mutants_of, sources
from mutate import verdict

from llmc.codegen.cuda.target.nvrtc import TEMPLATES

PRIMITIVES_AND_MATHS = {"device.cuh", "math.cuh"}


def test_every_header_with_something_to_mutate_is_mutated() -> None:
    for path in TEMPLATES.glob("*.cuh"):
        if path.name not in {*HEADERS, *PRIMITIVES_AND_MATHS}:
            assert not list(mutants_of(Source(path.name, path.read_text(), (), True))), path.name


def test_every_excuse_is_a_mutant_s() -> None:
    assert set(HARMLESS) <= {m.key(sources()[m.file].text) for m in mutants()}


@pytest.mark.parametrize("kind", [Kind.SYNC, Kind.BOUND])
def test_a_mutant_of_a_generated_kernel_is_caught(kind: Kind) -> None:
    mutant = next(m for m in mutants() if m.file == "layer_norm_w768.cu" and m.kind is kind)
    assert re.search(r" at rows\.cuh?:\d+: ", verdict(mutant))
