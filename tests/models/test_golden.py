"""The C++ of a small model to the letter."""

from __future__ import annotations

from llmc.ir.formats import Scheme
from tests.golden import Golden
from tests.models.captured import llama
from tests.models.test_plan import rendered


def test_two_layers(golden: Golden) -> None:
    golden(rendered(llama(2), Scheme.BF16).sources["model.cpp"], "llama.cpp")
