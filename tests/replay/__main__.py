"""What two revisions generate, compared: the proof of a refactor.

    python -m tests.replay --against REV [--ignore-hashes] [SUBJECT ...]

Builds the models of models.py in REV and in the working tree for CPUs and GPUs in every dtype, and compares all that
comes out: graphs after every pass, C++ and CUDA sources, plans, weights, reports, manifests. Nothing is compiled.
Prints "replay: identical" or the differences, and exits with 1 where there are any. What a revision generated is kept
below .cache/replay. --ignore-hashes takes names that end in a hash of their content as equal, and checksums.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / ".cache" / "replay"
HASH = re.compile(r"_[0-9a-f]{8}(?![0-9a-z])|\b[0-9a-f]{64}\b")
SHOWN_LINES, SHOWN_COLUMNS = 40, 400  # of one file's difference


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
        old, new = _Tree(kept, ignore_hashes), _Tree(now, ignore_hashes)
        differing = [
            name for name in sorted(old.files.keys() | new.files.keys()) if old.digest(name) != new.digest(name)
        ]
        for name in differing[:most]:
            print(_difference(name, old.text(name), new.text(name)))
    if len(differing) > most:
        print(f"... and {len(differing) - most} more files differ: {_kinds(differing)}")
    verdict = f"{len(differing)} files differ" if differing else "identical"
    verdict += " but for hashes" if ignore_hashes else ""
    print(f"replay: {verdict}: {len(new.files)} files against {commit[:9]}, {time.monotonic() - began:.0f} s")
    sys.exit(1 if differing else 0)


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
    by_full_name = (tree / "tests" / "__init__.py").exists()  # older trees have tests/ itself on the path
    module = "tests.replay.generate" if by_full_name else "replay.generate"
    path = os.pathsep.join([str(tree / "tests" / "_typing"), str(tree if by_full_name else tree / "tests")])
    command = [sys.executable, "-m", module, str(out), *names, "--jobs", str(jobs)]
    done = subprocess.run(command, cwd=tree, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    if done.returncode:
        raise click.ClickException(f"{tree}: {done.stderr.strip()}")


class _Tree:
    """What a revision generated. Files that only a hash in their names tells apart are one if hashes are ignored."""

    def __init__(self, folder: Path, ignore_hashes: bool) -> None:
        self.ignore_hashes = ignore_hashes
        self.files: dict[str, list[Path]] = {}
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            self.files.setdefault(self._masked(str(path.relative_to(folder))), []).append(path)

    def text(self, name: str) -> str:
        return "".join(sorted(map(self._read, self.files.get(name, []))))

    def _read(self, path: Path) -> str:
        """Without hashes, keys of JSON are sorted with what they hold: one that held a hash may stand elsewhere."""
        text = self._masked(path.read_text(errors="replace"))
        if path.suffix != ".json" or not self.ignore_hashes:
            return text
        return json.dumps(json.loads(text, object_pairs_hook=lambda pairs: sorted(pairs, key=repr)), indent=1)

    def digest(self, name: str) -> bytes | None:
        return hashlib.sha256(self.text(name).encode()).digest() if name in self.files else None

    def _masked(self, text: str) -> str:
        return HASH.sub("_#", text) if self.ignore_hashes else text


def _difference(name: str, old: str, new: str) -> str:
    if not old or not new:
        return f"+++ {name}: new" if new else f"--- {name}: gone"
    with tempfile.NamedTemporaryFile("w") as before, tempfile.NamedTemporaryFile("w") as after:
        for file, text in ((before, old), (after, new)):
            file.write(text)
            file.flush()
        command = ["git", "diff", "--no-index", "--unified=1", "--", before.name, after.name]
        lines = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()[4:]
    more = [f"... {len(lines) - SHOWN_LINES} more lines"] if len(lines) > SHOWN_LINES else []
    return "\n".join([f"*** {name}", *(line[:SHOWN_COLUMNS] for line in lines[:SHOWN_LINES]), *more])


def _kinds(names: Sequence[str]) -> str:
    """How many files of each name, whichever model they belong to."""
    counts = Counter(HASH.sub("_#", Path(name).name) for name in names)
    return ", ".join(f"{count} {name}" for name, count in counts.most_common(12))


if __name__ == "__main__":
    main()
