"""What two revisions generate, compared: the proof of a refactor.

    python -m tests.replay --against REV [--ignore-hashes] [SUBJECT ...]

Builds the models of models.py in REV and in the working tree for CPUs and GPUs in every dtype, and compares all that
comes out: graphs after every pass, C++ and CUDA sources, plans, weights, reports, manifests. Nothing is compiled.
Prints "replay: identical" or the differences, and exits with 1 where there are any. What a revision generated is kept
below .cache/replay. --ignore-hashes takes names that end in a hash of their content as equal.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / ".cache" / "replay"
HASH = re.compile(r"_[0-9a-f]{8}\b|\b[0-9a-f]{64}\b")
SHOWN_LINES = 40  # of one file's difference


@click.command(help=__doc__)
@click.option("--against", "revision", required=True, help="the revision to compare with")
@click.option("--ignore-hashes", is_flag=True)
@click.option("--most", default=12, show_default=True, help="differing files to show")
@click.argument("names", nargs=-1)
def main(revision: str, ignore_hashes: bool, most: int, names: Sequence[str]) -> None:
    began = time.monotonic()
    commit = _git("rev-parse", "--verify", f"{revision}^{{commit}}")
    with tempfile.TemporaryDirectory(prefix="replay-") as scratch:
        now, kept = Path(scratch) / "now", KEPT / "-".join([commit, *names])
        with ThreadPoolExecutor(2) as pool:
            there = pool.submit(_generate_revision, commit, kept, names)
            here = pool.submit(_generate, ROOT, now, names, 2 if kept.exists() else 1)
            there.result()
            here.result()
        differences = list(_compare(kept, now, ignore_hashes))
        num_files = sum(1 for path in now.rglob("*") if path.is_file())
    for text in differences[:most]:
        print(text)
    if len(differences) > most:
        print(f"... and {len(differences) - most} more files differ")
    verdict = f"{len(differences)} files differ" if differences else "identical"
    print(f"replay: {verdict}: {num_files} files against {commit[:9]}, {time.monotonic() - began:.0f} s")
    sys.exit(1 if differences else 0)


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise click.ClickException(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def _generate_revision(commit: str, out: Path, names: Sequence[str]) -> None:
    if out.exists():
        return
    with tempfile.TemporaryDirectory(prefix="replay-") as scratch:
        tree = Path(scratch) / "tree"
        _git("worktree", "add", "--detach", str(tree), commit)
        try:
            _generate(tree, Path(scratch) / "out", names, 1)
            out.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(Path(scratch) / "out", out)
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _generate(tree: Path, out: Path, names: Sequence[str], jobs: int) -> None:
    """By the code of `tree`, which need not be the installed one."""
    path = os.pathsep.join([str(tree / "tests" / "_typing"), str(tree / "tests")])
    command = [sys.executable, "-m", "replay.generate", str(out), *names, "--jobs", str(jobs)]
    done = subprocess.run(command, cwd=tree, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    if done.returncode:
        raise click.ClickException(f"{tree}: {done.stderr.strip()}")


def _compare(before: Path, after: Path, ignore_hashes: bool) -> Iterator[str]:
    """A text for each file that differs."""
    old, new = _read(before, ignore_hashes), _read(after, ignore_hashes)
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            yield f"--- {name}: gone"
        elif name not in old:
            yield f"+++ {name}: new"
        elif old[name] != new[name]:
            lines = difflib.unified_diff(_lines(old[name]), _lines(new[name]), name, name, "before", "after", n=1)
            shown = [line.rstrip("\n")[:400] for line in lines]
            more = [f"... {len(shown) - SHOWN_LINES} more lines"] if len(shown) > SHOWN_LINES else []
            yield "\n".join([*shown[:SHOWN_LINES], *more])


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def _read(folder: Path, ignore_hashes: bool) -> dict[str, str]:
    """Texts by name below the folder. Files that only a hash tells apart are read as one, in no order of hashes."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name, text = str(path.relative_to(folder)), path.read_text(errors="replace")
            if ignore_hashes:
                name, text = HASH.sub("_#", name), _without_hashes(path, text)
            found.setdefault(name, []).append(text)
    return {name: "".join(sorted(texts)) for name, texts in found.items()}


def _without_hashes(path: Path, text: str) -> str:
    """JSON's keys are sorted with what they hold: one that held a hash may have stood elsewhere."""
    text = HASH.sub("_#", text)
    if path.suffix != ".json":
        return text
    return json.dumps(json.loads(text, object_pairs_hook=lambda pairs: sorted(pairs, key=repr)), indent=1)


if __name__ == "__main__":
    main()
