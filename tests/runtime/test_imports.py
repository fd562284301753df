"""llmc.runtime stands alone: no torch, no transformers, no other part of llmc, and it is cheap to import."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import llmc.runtime

RUNTIME = Path(llmc.runtime.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(RUNTIME).with_suffix("").parts)
    for path in RUNTIME.rglob("*.py")
    if path.stem != "__init__"
)
FORBIDDEN = ("torch", "transformers", "onnx", "gguf", "ziglang", "pytest", "rich", "click")
LIBRARIES = {"numpy", "blake3", "tokenizers", "jinja2", "msgpack"}
# Modules that alone import a library, inside a function: what calls the driver, and what a terminal shows.
ALONE = {"cuda.driver.driver": "cuda", "terminal.console": "rich"}


def loaded_after(statement: str) -> list[str]:
    script = f"import sys\n{statement}\nprint(*sorted(sys.modules), sep='\\n')"
    return subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()


def test_everything_imports_without_the_rest() -> None:
    loaded = loaded_after("\n".join(f"import llmc.runtime.{name}" for name in MODULES))
    ours = {name.split(".")[1] for name in loaded if name.startswith("llmc.")}
    assert ours == {"runtime"}
    assert not [name for name in loaded if name.split(".")[0] in (*FORBIDDEN, "cuda")]


def test_the_package_itself_loads_nothing() -> None:
    loaded = loaded_after("import llmc.runtime")
    assert [name for name in loaded if name.startswith("llmc.")] == ["llmc.runtime"]
    assert not {name.split(".")[0] for name in loaded} & (LIBRARIES | set(FORBIDDEN))


def test_the_schema_loads_no_serving_code() -> None:
    loaded = loaded_after("import llmc.runtime.artifact.artifact")
    assert not {"tokenizers", "jinja2", "llmc.runtime.loop.engine"} & set(loaded)


@pytest.mark.parametrize("name", ["__init__", *MODULES])
def test_sources_import_the_runtime_and_its_libraries_only(name: str) -> None:
    allowed = LIBRARIES | set(sys.stdlib_module_names) | ({ALONE[name]} if name in ALONE else set())
    for node in ast.walk(ast.parse((RUNTIME / f"{name.replace('.', '/')}.py").read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "absolute imports only"
            names = [node.module or ""]
        else:
            continue
        for imported in names:
            assert imported.split(".")[0] in allowed or imported.startswith("llmc.runtime."), imported


DOCS = (RUNTIME.parent / "docs" / "runtime.md").read_text()


def test_the_docs_name_every_error() -> None:
    from llmc.runtime import errors

    for name in (n for n in vars(errors) if n[0].isupper()):
        assert f"`{name}`" in DOCS, name


def test_the_docs_name_every_module_in_its_room_and_no_other() -> None:
    rows = re.findall(r"^\| `([a-z/]+)/` \|[^|]*\| (.*) \|$", DOCS.partition("## Modules")[2], re.MULTILINE)
    told = [f"{room.replace('/', '.')}.{name}" for room, names in rows for name in re.findall(r"`(\w+)`", names)]
    assert told == [name for room, _ in rows for name in MODULES if name.rpartition(".")[0].replace(".", "/") == room]
    assert set(told) == set(MODULES) - {"errors"}


def test_every_exported_name_exists() -> None:
    for name in llmc.runtime.__all__:
        assert getattr(llmc.runtime, name).__name__ == name
    with pytest.raises(AttributeError, match="nonsense"):
        _ = llmc.runtime.nonsense
