"""`llmc verify`: whatever engine and source disagree about is found, told, and decides the verdict."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, pre_tokenizers, processors

from llmc.compiler.sources.resolve import open_source
from llmc.compiler.verify.logits import Verdict, compare, too_far
from llmc.compiler.verify.source_text import source_text
from llmc.compiler.verify.text_path import TextPath, compare_text
from llmc.compiler.verify.texts import texts
from llmc.ir.formats import Scheme
from llmc.ir.types import DType
from llmc.runtime import Engine
from llmc.runtime.artifact.artifact import read_manifest
from tests.e2e.commands import Commands
from tests.e2e.engines import Engines


@pytest.fixture(scope="module")
def engine(engines: Engines, speaking: Path) -> Iterator[Engine]:
    with Engine.load(engines.engine(speaking), threads=1) as loaded:
        yield loaded


def compared(engine: Engine, folder: Path) -> TextPath:
    source = open_source(str(folder))
    return compare_text(engine, source, source_text(source), texts())


def test_an_engine_agrees_with_its_own_source(engine: Engine, speaking: Path) -> None:
    path = compared(engine, speaking)
    assert path.disagreements == () and path.num_compared > 40


def tokenizer(folder: Path, change: Callable[[Tokenizer], object]) -> None:
    inner = Tokenizer.from_file(str(folder / "tokenizer.json"))
    change(inner)
    inner.save(str(folder / "tokenizer.json"))


def settings(folder: Path, **changes: Any) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def split_otherwise(folder: Path) -> None:
    tokenizer(folder, lambda t: setattr(t, "pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=True)))


def put_something_first(folder: Path) -> None:
    def change(t: Tokenizer) -> None:
        t.post_processor = processors.TemplateProcessing(single="</s> $A", special_tokens=[("</s>", 256)])

    tokenizer(folder, change)


def add_a_token(folder: Path) -> None:
    tokenizer(folder, lambda t: t.add_tokens([AddedToken("ship", normalized=False)]))


def decode_otherwise(folder: Path) -> None:
    tokenizer(folder, lambda t: t.add_special_tokens([AddedToken("e", special=True, normalized=False)]))


def template(folder: Path) -> None:
    settings(folder, chat_template="{% for m in messages %}{{ m.content | trim }}\n{% endfor %}")


def refusing_template(folder: Path) -> None:
    settings(folder, chat_template="{{ raise_exception('no') }}")


def no_template(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "chat_template"}))


def other_end(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": 7}))


def no_tokenizer(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        (split_otherwise, {"ids", "chat"}),
        (put_something_first, {"ids", "special tokens"}),
        (add_a_token, {"ids", "decoding", "continuation"}),
        (decode_otherwise, {"decoding", "continuation"}),
        (template, {"chat"}),
        (refusing_template, {"chat"}),
        (no_template, {"chat"}),
        (other_end, {"special tokens"}),
        (no_tokenizer, {"tokenizer"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_each_disagreement_is_found(
    engine: Engine, damaged: Path, change: Callable[[Path], None], kinds: set[str]
) -> None:
    """The source is changed after the build: what it does to text is another thing then."""
    change(damaged)
    found = compared(engine, damaged).disagreements
    assert {one.kind for one in found} >= kinds, found
    assert all(one.source != one.engine for one in found)


def test_the_command_tells_them_and_fails(
    engines: Engines, speaking: Path, damaged: Path, llmc: Commands, tmp_path: Path
) -> None:
    built = engines.engine(speaking)
    (tmp_path / "short").write_text("a\n")
    passed = llmc.run("verify", built, speaking, "--texts", tmp_path / "short")
    assert (passed.code, passed.stdout.splitlines()[-1]) == (0, "PASS")
    put_something_first(damaged)
    failed = llmc.run("verify", built, damaged, "--texts", tmp_path / "short")
    assert failed.code == 1 and failed.stdout.splitlines()[-1].startswith("FAIL: "), failed
    assert "ids of 'a': the source has [256" in failed.stdout
    assert "measured again                  KL from " in passed.stdout
    as_json = json.loads(llmc.run("verify", built, damaged, "--texts", tmp_path / "short", "--json").stdout)
    assert as_json["verdict"] == "FAIL" and as_json["text_path"]["disagreements"]
    assert as_json["certificate"]["stated"]["figures"]["positions"] == 512


def test_how_far_logits_may_be_is_the_formats_matter() -> None:
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((4, 50)).astype(np.float32)
    noise = rng.standard_normal(logits.shape).astype(np.float32)
    told: list[int] = []

    def verdict(size: float) -> Verdict:
        return compare([[1, 2, 3, 4]], lambda ids: logits + size * noise, lambda ids: logits, told.append)

    steps = {Scheme.F32: 2.0**-24, Scheme.F16: 2.0**-11, Scheme.BF16: 2.0**-8, Scheme.INT8: 2.0**-7}
    for scheme, step in steps.items():
        assert too_far(verdict(step), [scheme], []) is None
        assert "expected at most" in str(too_far(verdict(1.5), [scheme], []))
    assert told == [4] * 8
    assert too_far(replace(verdict(0), mean_kl=float("nan")), [Scheme.BF16], []) is not None
    assert not too_far(verdict(0.5), [Scheme.F32, Scheme.INT4], [DType.F32])
    assert "expected at most 9.8e-04 of f32, keys and values in f32" in str(
        too_far(verdict(0.5), [Scheme.F32], [DType.F32])
    )
    for kept, step in ((DType.BF16, 2.0**-8), (DType.I8, 2.0**-7), (DType.F8_E4M3, 2.0**-4)):
        assert too_far(verdict(step), [Scheme.F32], [kept]) is None


def test_figures_of_logits_that_are_known() -> None:
    """Two tokens, the engine at 3:1 where the source is at 1:1; in the second text they agree."""
    even, odd = np.ones((3, 2), np.float32), np.log(np.array([[3, 1]] * 3, np.float32))
    engine = iter([odd, even])
    verdict = compare([[0, 0, 1], [1, 1, 1]], lambda ids: next(engine), lambda ids: even)
    kl = 0.5 * np.log(0.5 / 0.75) + 0.5 * np.log(0.5 / 0.25)
    assert verdict.mean_kl == pytest.approx(kl / 2) and verdict.max_kl == pytest.approx(kl)
    assert verdict.p99_kl == pytest.approx(kl) and verdict.worst.text == 0
    assert verdict.reference_perplexity == pytest.approx(2)
    assert verdict.perplexity == pytest.approx((0.75 * 0.25 * 0.5 * 0.5) ** -0.25)
    assert compare([[1]], lambda ids: even[:1], lambda ids: even[:1]).perplexity is None
    nothing = np.zeros_like(even)  # of a model whose head is all zero
    assert compare([[0, 1, 1]], lambda ids: nothing, lambda ids: nothing).relative_error == 0
    assert compare([[0, 1, 1]], lambda ids: odd, lambda ids: nothing).relative_error == np.inf


def test_a_build_says_what_the_models_files_disagree_about(damaged: Path, llmc: Commands, tmp_path: Path) -> None:
    settings(damaged, bos_token="</s>")
    other_end(damaged)
    (damaged / "generation_config.json").write_text(json.dumps({"bos_token_id": 3, "trust_remote_code": True}))
    out, compiler = tmp_path / "engine", tmp_path / "clang++"
    compiler.write_text(  # the kernels are not run, so nothing is compiled
        '#!/bin/sh\n[ "$1" = --version ] && echo "clang version 18.1.0" && exit\n'
        'while [ "$1" != -o ]; do shift; done\ntouch "$2"\n'
    )
    compiler.chmod(0o755)
    options = ("--target", "generic", "--dtype", "f32", "--certify", "0")
    built = llmc.run("build", damaged, "-o", out, *options, CXX=str(compiler))
    said = " ".join(built.stderr.split())
    assert built.code == 0
    for notice in (
        "BOS is 256 ('</s>'), as the tokenizer has it; the model's settings say 3",
        "the tokenizer's end of text is 256 ('</s>'), the model's settings say 7",
        "generation settings that nobody reads: trust_remote_code",
    ):
        assert notice in said
        assert notice.replace("reads: ", "reads ") in " ".join(llmc.run("inspect", out).stdout.split())
    tokens = read_manifest(out).tokens
    assert (tokens.bos, tokens.eos, tokens.add_bos) == (256, (7, 256), False)
