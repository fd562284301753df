"""The fixture golden."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden import Golden


def test_a_difference_is_shown_and_stored_when_asked_for(tmp_path: Path) -> None:
    compare, update = (Golden(tmp_path / "golden", update) for update in (False, True))
    with pytest.raises(pytest.fail.Exception, match=r"model.cpp is no longer what is generated"):
        compare("int a;\n", "model.cpp")
    update("int a;\n", "model.cpp")
    compare("int a;\n", "model.cpp")
    with pytest.raises(pytest.fail.Exception, match=r"(?s)--update-golden\n.*\n-int a;\n\+int b;\n"):
        compare("int b;\n", "model.cpp")
    assert (tmp_path / "golden" / "model.cpp").read_text() == "int a;\n"
