"""Ask llama.cpp anew, and store what it says in goldens.json: `python -m tests.llamacpp_oracle FOLDER [--train]`

FOLDER is what `bench/cpu/build_llamacpp.sh FOLDER` filled: llama.cpp's source and its libraries. `--train` learns the
vocabularies anew too (trained.json). Takes about a minute.
"""

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .cases import cases
from .texts import texts
from .vocabularies import TRAINED, Vocabulary, byte_level, train, write

_HERE = Path(__file__).parent
_LIBRARIES = (
    "src/libllama.a",
    "ggml/src/libggml.a",
    "ggml/src/libggml-cpu.a",
    "ggml/src/libggml-base.a",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.llamacpp_oracle", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", action="store_true")
    arguments = parser.parse_args()
    questions = texts()
    if arguments.train:
        _store(TRAINED, train(questions * 3))
    with tempfile.TemporaryDirectory() as scratch:
        oracle = _Oracle(arguments.folder, Path(scratch))
        names = _pres(arguments.folder)
        answers = {name: oracle.ask(byte_level(name), questions) for name in names}
        _store(
            _HERE / "goldens.json",
            {
                "texts": questions,
                "pre": _by_text(questions, {name: answer["ids"] for name, answer in answers.items()}),
                "add_bos": sorted(name for name, answer in answers.items() if answer["add_bos"]),
                "cases": {name: oracle.ask(case.vocabulary, case.texts) for name, case in cases().items()},
            },
        )


class _Oracle:
    """ask.cpp, compiled."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        self._scratch = scratch
        self._program = scratch / "ask"
        source = folder / "source" / "llama.cpp"
        include = [f"-I{source / part / 'include'}" for part in ("", "ggml")]
        libraries = [str(folder / "build" / name) for name in _LIBRARIES]
        command = ["g++", "-std=c++17", "-O1", *include, str(_HERE / "ask.cpp"), *libraries, "-fopenmp", "-ldl"]
        subprocess.run([*command, "-o", str(self._program)], check=True)

    def ask(self, vocabulary: Vocabulary, questions: Sequence[str]) -> dict[str, Any]:
        path = self._scratch / "vocabulary.gguf"
        write(vocabulary, path)
        asked = "".join(text.encode().hex() + "\n" for text in questions)
        done = subprocess.run(
            [str(self._program), str(path)], input=asked, stdout=subprocess.PIPE, text=True, check=True
        )
        lines = [line.split(" ") for line in done.stdout.splitlines()]
        facts = {key: [int(value) for value in values] for key, *values in lines if key not in ("ids", "piece")}
        return {
            "ids": [[int(token) for token in values] for key, *values in lines if key == "ids"],
            "ends": facts["eog"],
            "add_bos": bool(facts["add_bos"][0]),
            "pieces": " ".join(values[0] for key, *values in lines if key == "piece"),
        }


def _pres(folder: Path) -> list[str]:
    """Every name that this llama.cpp knows and can run with a byte-level vocabulary."""
    source = (folder / "source" / "llama.cpp" / "src" / "llama-vocab.cpp").read_text()
    names = dict.fromkeys(re.findall(r'tokenizer_pre == "([^"]+)"', source))
    spelled = ("gemma4", "granite-embed-multi-311m", "mmbert", "sarvam-moe", "whitespace")  # bytes as <0xXX>
    return [name for name in names if name not in spelled]


def _by_text(questions: list[str], answers: dict[str, list[list[int]]]) -> dict[str, Any]:
    """Names mostly agree: the distinct answers to each text, and which of them each name gives."""
    distinct = [list(dict.fromkeys(tuple(ids[i]) for ids in answers.values())) for i in range(len(questions))]
    chosen = {name: [distinct[i].index(tuple(given)) for i, given in enumerate(ids)] for name, ids in answers.items()}
    return {"answers": distinct, "chosen": chosen}


def _store(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=True, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
