"""What the runtime and the kernels must agree on is stated once in each language, and alike."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llmc.codegen.kv_groups import BLOCK_TOKENS
from llmc.runtime.artifact.manifest import ABI, MAX_LOGPROBS
from llmc.runtime.cpu.limits import MAX_THREADS
from llmc.runtime.kv.blocks import NO_BLOCK

TEMPLATES = Path(__file__).resolve().parent.parent / "templates"
FACTS = {
    "positions of a KV block": (BLOCK_TOKENS, {"cpu/kv.h": r"int BLOCK = (.+?);", "cuda/kv.cuh": r"kKvBlock = (.+?);"}),
    "alternatives of a row": (
        MAX_LOGPROBS,
        {"cpu/abi.h": r"#define LLMC_MAX_LOGPROBS (\S+)", "cuda/sample_row.cuh": r"kMaxLogprobs = (.+?) "},
    ),
    "threads of an engine": (MAX_THREADS, {"cpu/threads.h": r"int MAX_THREADS = (.+?);"}),
    "the step ABI": (ABI, {"cpu/abi.h": r"#define LLMC_ABI_VERSION (\S+)"}),
    "no block": (NO_BLOCK, {"cpu/abi.h": r"#define LLMC_NO_BLOCK \((.+?)\)"}),
}


@pytest.mark.parametrize("fact", FACTS)
def test_kernels_say_what_python_says(fact: str) -> None:
    value, statements = FACTS[fact]
    for where, pattern in statements.items():
        language = (p for p in (TEMPLATES / where).parent.iterdir() if p.is_file())
        found = [(p.name, said) for p in language for said in re.findall(pattern, p.read_text())]
        assert found == [(Path(where).name, str(value))]


ROOT = TEMPLATES.parent
WHEEL = ("ir", "passes", "codegen", "compiler", "runtime", "serve", "emulator", "templates")
FOLDERS = (*WHEEL, "bench", "deploy", "tests")
PATH = re.compile(rf"(?<![\w/.*<{{-])((?:{'|'.join(FOLDERS)})/[\w/]+\.\w+)\b")


def test_paths_in_comments_and_documents_exist() -> None:
    """A file of ours that is named by its path, wherever it is named."""
    files = [file for folder in (*FOLDERS, "docs") for file in (ROOT / folder).rglob("*")] + list(ROOT.glob("*.md"))
    texts = {file: file.read_text() for file in files if file.suffix in (".py", ".md", ".h", ".cuh", ".cpp", ".j2")}
    named = [(file, path) for file, text in texts.items() for path in PATH.findall(text)]
    assert len(named) > 50
    assert [f"{file}: {path}" for file, path in named if not (ROOT / path).exists()] == []
