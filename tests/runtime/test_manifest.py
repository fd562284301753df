"""Manifests: unreadable, ill-typed, of other formats; and back to the same bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmc.runtime import Engine
from llmc.runtime.artifact.artifact import (
    is_engine,
    read_manifest,
    render_manifest,
)
from llmc.runtime.artifact.kv_layout import KvLayout
from llmc.runtime.artifact.manifest import FORMAT, GenerationDefaults, Manifest
from llmc.runtime.artifact.strict_json import from_plain, parse_json, render_json, to_plain
from llmc.runtime.errors import (
    ChecksumMismatch,
    FormatTooNew,
    ManifestInvalid,
)
from tests.runtime.damage import edit_manifest, refuse
from tests.runtime.engine_folders import MakeEngine, kv_layout, manifest


def test_a_damaged_manifest_is_told_by_what_differs(make_engine: MakeEngine) -> None:
    """Never by two numbers that are the same."""
    folder = make_engine()
    path = folder / "manifest.json"
    sound = path.read_bytes()
    n = len(sound)
    edited = sound.replace(b'"max_batch": ', b'"max_batch": 1', 1)
    again = "; copy or build the engine again"
    for content, kind, match in (
        (sound[:-1], ChecksumMismatch, f"{n - 1} bytes, expected {n}; the first difference is at byte {n - 1}{again}"),
        (sound + b" ", ChecksumMismatch, f"{n + 1} bytes, expected {n}; the first difference is at byte {n}{again}"),
        (b" " + sound, ChecksumMismatch, f"{n + 1} bytes, expected {n}; the first difference is at byte 0{again}"),
        (
            edited,
            ChecksumMismatch,
            rf"its content has the checksum \w+\.\.\., not \w+\.\.\., which stands in it{again}",
        ),
        (sound[:-100], ManifestInvalid, f"not JSON: .*: the manifest is damaged{again}"),
        (b"", ManifestInvalid, f"not JSON: .*: the manifest is damaged{again}"),
    ):
        path.write_bytes(content)
        refuse(folder, kind, match)
    path.write_bytes(edited)
    with pytest.raises(ChecksumMismatch) as caught:
        read_manifest(folder)
    assert len(set(re.findall(r"\w{16}(?=\.\.\.)", str(caught.value)))) == 2


def group_of(plain: Any) -> Any:
    return plain["targets"][0]["kv"]["groups"][0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "nested too deeply|not JSON"),
        (b"[]", "expected an object"),
        (b'{"format": 1, "format": 1}', "occurs twice"),
        (b'{"format": NaN}', "NaN"),
        (b'{"format": "1"}', "format: expected an integer"),
        (b'{"format": true}', "format: expected an integer"),
        (b"{}", "format: expected an integer"),
    ],
)
def test_unreadable_manifests(tmp_path: Path, text: bytes, message: str) -> None:
    (tmp_path / "manifest.json").write_bytes(text)
    refuse(tmp_path, ManifestInvalid, message)
    assert not is_engine(tmp_path)


def test_a_newer_format_is_named_before_its_unknown_keys(make_engine: MakeEngine) -> None:
    folder = make_engine()
    edit_manifest(folder, lambda m: m.update(format=FORMAT + 1, novelty=1))
    refuse(folder, FormatTooNew, f"format {FORMAT + 1}, this llmc reads formats {FORMAT - 1} and {FORMAT}.*newer llmc")
    assert is_engine(folder)
    edit_manifest(folder, lambda m: m.update(format=FORMAT - 2))
    refuse(folder, FormatTooNew, f"format {FORMAT - 2}, this llmc reads formats .*older llmc; build it again")


STORED = Path(__file__).parent / "formats" / f"manifest_{FORMAT - 1}.json"


def test_a_stored_manifest_of_the_format_before_is_read(tmp_path: Path) -> None:
    """As that llmc wrote it, checked by its own checksum. A change of FORMAT needs the next one stored."""
    (tmp_path / "manifest.json").write_bytes(STORED.read_bytes())
    read = read_manifest(tmp_path)
    assert read.format == FORMAT and read.targets[0].features == ("avx2", "fma") and len(read.files) == 1
    assert read.generation == GenerationDefaults(do_sample=True, temperature=0.6, top_p=0.9)
    (tmp_path / "manifest.json").write_bytes(STORED.read_bytes().replace(b"0.6", b"0.7"))
    refuse(tmp_path, ChecksumMismatch, "the manifest is damaged or was edited")


def as_before(plain: Any) -> None:
    """A manifest as the llmc of the format before would have written it: with the keys that it knew."""
    known = json.loads(STORED.read_text())
    plain["format"] = known["format"]
    for part in ("model", "limits", "tokens", "generation"):
        plain[part] = {key: value for key, value in plain[part].items() if key in known[part]}


def test_an_engine_of_the_format_before_answers_alike(make_engine: MakeEngine) -> None:
    folder = make_engine()
    with Engine.load(folder) as engine:
        today = engine.generate([[1, 2, 3]], max_tokens=8)[0].token_ids
    edit_manifest(folder, as_before)
    before = (folder / "manifest.json").read_bytes()
    with Engine.load(folder) as engine:
        assert engine.generate([[1, 2, 3]], max_tokens=8)[0].token_ids == today
    assert (folder / "manifest.json").read_bytes() == before
    edit_manifest(folder, lambda m: m.update(generation=[]))
    refuse(folder, ManifestInvalid, "generation: expected an object")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(novelty=1), "novelty: unknown key"),
        (lambda m: m.pop("limits"), "limits: missing"),
        (lambda m: group_of(m).pop("window"), r"targets\[0\]\.kv\.groups\[0\]\.window: missing"),
        (lambda m: group_of(m).update(window=True), r"groups\[0\]\.window: expected an integer, got true"),
        (lambda m: group_of(m).update(window="8"), r"groups\[0\]\.window: expected an integer, got \"8\""),
        (lambda m: group_of(m).update(window=0), r"kv\.groups\[0\]: window is 0, must be at least 1"),
        (lambda m: group_of(m)["slots"][0].update(kv_heads=0), r"slots\[0\]: kv_heads is 0"),
        (lambda m: group_of(m).update(slots={}), r"targets\[0\]\.kv\.groups\[0\]\.slots: expected a list"),
        (lambda m: m["limits"].update(max_batch=0), r"limits: max_batch is 0"),
        (lambda m: m["limits"].update(max_batch=1.5), r"limits\.max_batch: expected an integer"),
        (lambda m: m["generation"].update(top_p=10**400), r"generation\.top_p"),
        (lambda m: m["generation"].update(top_p="x"), r"generation\.top_p: expected a number"),
        (lambda m: m["tokens"].update(eos=[-1]), "eos has a negative id"),
        (lambda m: m["tokens"].update(add_bos=True, bos=None), "add_bos is true but bos is null"),
        (lambda m: m["model"].update(num_valid_tokens=10**6), "exceeds vocab_size"),
        (lambda m: m["files"].update(x={"bytes": 1, "blake3": "zz"}), r"files\.x: blake3 'zz' is not"),
        (lambda m: m["targets"].clear(), r"targets are \[\], must be one or more"),
        (lambda m: m["targets"].append(m["targets"][0]), r"targets are \['cpu', 'cpu'\], must be"),
        (lambda m: m["targets"][0].update(kind="tpu"), r"targets\[0\]: kind is 'tpu', must be 'cpu' or 'cuda'"),
        (lambda m: m["producer"].update(llmc=1), r"producer\.llmc: expected a string"),
    ],
)
def test_ill_typed_manifests_name_the_key(
    make_engine: MakeEngine, change: Callable[[Any], object], message: str
) -> None:
    folder = make_engine()
    edit_manifest(folder, change)
    refuse(folder, ManifestInvalid, message)


def test_manifests_round_trip_and_are_canonical() -> None:
    one = manifest(generation=GenerationDefaults(do_sample=True, temperature=0.7, top_k=5))
    plain = to_plain(one)
    assert from_plain(Manifest, plain) == one
    assert parse_json(render_json(plain)) == plain
    assert render_manifest(one) == render_manifest(from_plain(Manifest, dict(reversed(plain.items()))))
    kv = kv_layout((None, 8))
    assert from_plain(KvLayout, to_plain(kv)) == kv
