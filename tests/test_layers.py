"""Who may import whom, and that the wheel holds what is on disk."""

from __future__ import annotations

import ast
import sys
import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ("ir", "compiler", "passes", "codegen", "runtime", "serve", "emulator")
BUILD_ONLY = {"torch", "transformers", "gguf", "ziglang", "accelerate"}

# module prefix -> prefixes of ours that it may import; the longest match counts
ALLOWED: dict[str, tuple[str, ...]] = {
    "llmc.ir": ("llmc.ir",),
    "llmc.runtime": ("llmc.runtime",),
    "llmc.serve": ("llmc.serve", "llmc.runtime"),
    "llmc.passes": ("llmc.passes", "llmc.ir"),
    # the engine's schema is owned by its reader
    "llmc.codegen": ("llmc.codegen", "llmc.ir", "llmc.runtime.artifact", "llmc.runtime.cuda.plan"),
    # engines that are finished where they run, or read back
    "llmc.codegen.hollow": ("llmc.codegen", "llmc.ir", "llmc.runtime.artifact", "llmc.runtime.errors"),
    "llmc.codegen.engine_weights": ("llmc.codegen", "llmc.ir", "llmc.runtime.artifact", "llmc.runtime.errors"),
    "llmc.emulator": ("llmc.emulator",),
    "llmc.compiler": ("llmc",),
}


def sources() -> list[Path]:
    return sorted(p for layer in LAYERS for p in (ROOT / layer).rglob("*.py"))


def module(path: Path) -> str:
    parts = ("llmc", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> list[str]:
    """Names of all modules a file imports, anywhere in it."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def within(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == p or name.startswith(p + ".") for p in prefixes)


@pytest.mark.parametrize("path", sources(), ids=module)
def test_imports_stay_in_their_layers(path: Path) -> None:
    name = module(path)
    rule = max((p for p in ALLOWED if within(name, (p,))), key=len, default=None)
    assert rule is not None or name == "llmc"
    ours = [i for i in imports(path) if within(i, ("llmc",))]
    assert [i for i in ours if not within(i, ALLOWED[rule or "llmc.compiler"])] == []


def test_no_files_import_each_other_in_a_ring() -> None:
    """Imports inside functions count: a ring that only works because of when it is entered is one."""
    modules = {module(path) for path in sources()}
    needed = {module(path): {_module_of(name, modules) for name in imports(path)} for path in sources()}
    graph = {name: sorted(n for n in found if n not in (None, name)) for name, found in needed.items()}
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def _module_of(name: str, modules: set[str]) -> str | None:
    """The file that an import loads; `from package import module` names both."""
    return next((m for m in (name, name.rpartition(".")[0]) if m in modules), None)


@pytest.mark.parametrize("path", [p for p in sources() if p.parts[len(ROOT.parts)] != "compiler"], ids=module)
def test_only_the_compiler_knows_the_frameworks(path: Path) -> None:
    assert not {i.split(".")[0] for i in imports(path)} & BUILD_ONLY


def test_what_is_imported_is_installed_with_llmc() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    names = [
        *project["dependencies"],
        *(name for extra in ("bench", "build", "cuda", "otel", "serve") for name in extras[extra]),
    ]
    declared = {"".join(c for c in n.split(">")[0].split("=")[0].split("~")[0] if c not in " ").lower() for n in names}
    used = {i.split(".")[0] for p in sources() for i in imports(p)} - set(sys.stdlib_module_names) - {"llmc", ""}
    distribution = {
        "cuda": "cuda-python",
        "huggingface-hub": "transformers",
        "opentelemetry": "opentelemetry-sdk",
    }  # of imports with another name
    needed = {distribution.get(u.replace("_", "-"), u.replace("_", "-")) for u in used}
    assert needed <= declared


def test_init_files_run_nothing() -> None:
    """All but the runtime's, which gives its public names, hold a docstring at most."""
    inits = [p for p in sources() if p.name == "__init__.py"]
    full = [p for p in inits if not all(isinstance(s, ast.Expr) for s in ast.parse(p.read_text()).body)]
    assert full == [ROOT / "runtime" / "__init__.py"]


def test_the_wheel_holds_the_packages_on_disk() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    on_disk = {module(p) for p in sources() if p.name == "__init__.py"}
    on_disk |= {
        "llmc.templates",
        *(f"llmc.templates.{p.parent.name}" for p in (ROOT / "templates").glob("*/__init__.py")),
    }
    on_disk |= {module(folder / "x").rpartition(".")[0] for folder in data_folders()}
    assert set(tool["packages"]) == on_disk
    assert len(tool["packages"]) == len(on_disk)
    without = [p.parent for p in sources() if not (p.parent / "__init__.py").exists()]
    assert without == []


def data_folders() -> set[Path]:
    """Folders below the layers that hold files, none of them Python: the emulator's C++."""
    files = [p for layer in LAYERS for p in (ROOT / layer).rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    return {p.parent for p in files} - {p.parent for p in files if p.suffix == ".py"}


def test_the_wheel_holds_the_data_on_disk() -> None:
    package_data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    assert data_folders()
    for folder in data_folders():
        patterns = package_data[module(folder / "x").rpartition(".")[0]]
        assert {p for pattern in patterns for p in folder.glob(pattern)} == set(folder.iterdir())


def test_the_wheel_holds_the_texts_beside_python() -> None:
    package_data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    texts = [p for layer in LAYERS for p in (ROOT / layer).rglob("*.txt")]
    assert len(texts) >= 2
    for text in texts:
        assert any(text.match(pattern) for pattern in package_data[module(text.with_suffix(".py")).rpartition(".")[0]])


def test_the_wheel_holds_the_templates_on_disk() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = [*tool["package-data"]["llmc.templates"], *tool["package-data"]["*"]]
    templates = ROOT / "templates"
    packed = {p for pattern in patterns for p in templates.glob(pattern)}
    data = {p for p in templates.rglob("*") if p.is_file() and p.suffix != ".py" and "__pycache__" not in p.parts}
    assert data and data == packed
