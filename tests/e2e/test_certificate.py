"""The certificate of an engine: what it measures, what it finds, what fails by it, and when it says nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from llmc.codegen import weights
from llmc.codegen.engine_weights import graphs_of, linears_of, placed_in
from llmc.codegen.weights import SourceReader, stored, weight_name
from llmc.compiler.build import BuildError, BuildOptions, build
from llmc.compiler.certify import TWIN, Certifying
from llmc.compiler.progress import Progress
from llmc.compiler.sources.resolve import open_source
from llmc.compiler.verify import reference
from llmc.compiler.verify.certificate import (
    CERTIFICATE,
    Certificate,
    differences,
    read_certificate,
    reproducible_digits,
    write_certificate,
)
from llmc.compiler.verify.corpus import PIECE_TOKENS, calibration, held_out, spread
from llmc.compiler.verify.errors import VerificationError
from llmc.compiler.verify.reference import reference_model, source_model
from llmc.ir.formats import Scheme
from llmc.ir.ops.constant import WeightExpr
from llmc.runtime import Engine
from llmc.runtime.artifact.artifact import MANIFEST, read_manifest
from llmc.runtime.artifact.manifest import Manifest
from llmc.runtime.errors import ChecksumMismatch, ManifestInvalid
from tests.e2e.commands import Commands
from tests.e2e.engines import Engines, Silent

GENERIC = "generic"  # the least to compile
PLANTED = "model.layers.1.mlp.down_proj"


@pytest.fixture(scope="module")
def quantised(engines: Engines, speaking: Path) -> Path:
    return engines.engine(speaking, Scheme.INT8, target=GENERIC)


def certificate_of(folder: Path) -> Certificate:
    found = read_certificate(folder, read_manifest(folder))
    assert found is not None
    return found


def test_a_build_measures_its_engine(quantised: Path) -> None:
    found = certificate_of(quantised)
    figures = found.figures
    assert figures is not None and figures.positions == found.tokens == 512
    assert 0 < figures.kl_mean < figures.kl_p99 <= figures.kl_max < 0.1
    assert figures.perplexity == pytest.approx(figures.source_perplexity, rel=0.05)
    assert found.measured_on == "generic" and found.remarks == ()
    assert CERTIFICATE not in read_manifest(quantised).files
    assert len(found.layers) == 9 and {layer.scheme for layer in found.layers} == {"int8"}
    for layer in found.layers:
        assert 2**-10 < layer.weight_error < 2**-6
        assert layer.output_error is not None and 2**-10 < layer.output_error < 2**-6


def test_a_planted_error_is_found(
    quantised: Path, speaking: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One layer's scales are off by a tenth: an engine of this many bits that keeps to what it kept to before is not
    to be had, and none is left."""
    honest = certificate_of(quantised).figures
    assert honest is not None

    def planted(expr: WeightExpr, reader: SourceReader) -> Iterator[npt.NDArray[np.uint8]]:
        for piece in stored(expr, reader):
            off = weight_name(expr) == f"{PLANTED}.weight.scale"
            yield (piece.view(np.float32) * np.float32(1.1)).view(np.uint8) if off else piece

    monkeypatch.setattr(weights, "stored", planted)
    options = BuildOptions(
        str(speaking), tmp_path / "engine", scheme=Scheme.INT8, max_kl=1.1 * honest.kl_mean, target=GENERIC
    )
    with pytest.raises(BuildError, match=rf"--max-kl .* is missed.*{PLANTED} is furthest, by 10\.\d% in int8"):
        build(options, Silent())
    assert list(tmp_path.iterdir()) == []


def test_verify_measures_the_same(quantised: Path, speaking: Path, llmc: Commands, tmp_path: Path) -> None:
    (tmp_path / "short").write_text("a\n")
    again = json.loads(llmc.run("verify", quantised, speaking, "--texts", tmp_path / "short", "--json").stdout)
    measured = again["certificate"]
    assert measured["differences"] == [] and measured["found"]["layers"] == measured["stated"]["layers"]
    assert measured["found"]["figures"] == measured["stated"]["figures"]
    shown = " ".join(llmc.run("inspect", quantised).stdout.split())
    assert (
        f"{measured['stated']['figures']['kl_mean']:.4g} in the mean" in shown and "furthest from the source" in shown
    )


def test_figures_that_are_not_the_stated_ones_are_told(quantised: Path) -> None:
    certificate = certificate_of(quantised)
    stated = certificate.figures
    assert stated is not None
    assert list(differences(stated, stated, 5)) == []
    other = replace(stated, kl_mean=1.002 * stated.kl_mean)
    assert list(differences(stated, other, 3)) == []
    assert [line.partition(" ")[0] for line in differences(stated, other, 5)] == ["kl_mean"]
    elsewhere = replace(certificate, measured_on="x86-64-v3")
    plain = replace(certificate, layers=tuple(replace(layer, scheme="bf16") for layer in certificate.layers))
    assert reproducible_digits(elsewhere, certificate) == 5  # the same integers everywhere
    assert reproducible_digits(plain, plain) == 3
    assert reproducible_digits(plain, replace(plain, measured_on="x86-64-v3")) is None


def test_a_certificate_is_of_one_engine(quantised: Path, engines: Engines, speaking: Path, tmp_path: Path) -> None:
    manifest, certificate = read_manifest(quantised), certificate_of(quantised)
    write_certificate(tmp_path, certificate)
    assert read_certificate(tmp_path, manifest) == certificate
    with pytest.raises(ChecksumMismatch, match="is of the engine"):
        read_certificate(tmp_path, read_manifest(engines.engine(speaking)))
    path = tmp_path / CERTIFICATE
    path.write_text(path.read_text().replace('"tokens": 512', '"tokens": 513'))
    with pytest.raises(ChecksumMismatch, match="damaged or edited"):
        read_certificate(tmp_path, manifest)
    path.write_text("[]")
    with pytest.raises(ManifestInvalid, match="expected an object"):
        read_certificate(tmp_path, manifest)
    path.unlink()
    assert read_certificate(tmp_path, manifest) is None


def finished(
    engine: Path, speaking: Path, tmp_path: Path, manifest: Manifest | None = None, **options: float
) -> Certificate:
    """The certificate that a build with other options would have given the engine."""
    asked = BuildOptions(str(speaking), tmp_path / "out", scheme=Scheme.INT8, **options)  # type: ignore[arg-type]
    folder = tmp_path / "certified"
    folder.mkdir(exist_ok=True)

    def twin(out: Path) -> Manifest:
        shutil.copytree(engine, out)
        return read_manifest(out)

    manifest = manifest or read_manifest(engine)
    if not (folder / MANIFEST).exists():  # a library that is loaded is not written over
        for name in (*manifest.files, MANIFEST):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(engine / name, folder / name)
    Certifying(open_source(str(speaking)), asked, twin, Progress()).finish(folder, manifest)
    found = read_certificate(folder, manifest)
    assert found is not None
    return found


def test_without_room_it_says_so(
    quantised: Path, speaking: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "available_bytes", lambda: 100 << 20)
    found = finished(quantised, speaking, tmp_path)
    assert found.figures is None and found.layers == () and found.measured_on == ""
    (remark,) = found.remarks
    assert "in float32 needs 27" in remark and "105 MB are available" in remark, remark
    with pytest.raises(BuildError, match=r"--max-kl 0.5 cannot be told: the source in float32"):
        finished(quantised, speaking, tmp_path, max_kl=0.5)


def test_an_engine_for_another_machine_is_measured_through_a_twin(
    quantised: Path, speaking: Path, tmp_path: Path
) -> None:
    here = read_manifest(quantised)
    elsewhere = replace(here, targets=(replace(here.targets[0], features=("of_the_future",)),))
    unmeasured = finished(quantised, speaking, tmp_path, elsewhere)
    assert unmeasured.figures is None and f"--certify 512 measures {TWIN}" in unmeasured.remarks[0]
    measured = finished(quantised, speaking, tmp_path, elsewhere, certify=256)
    assert measured.figures is not None and measured.tokens == 256 and measured.measured_on == TWIN
    assert measured.remarks[0].startswith(f"generic was not run: {TWIN} has the same weights")
    assert not list(tmp_path.glob(".*"))


def test_a_model_without_tokenizer_is_not_measured(engines: Engines) -> None:
    _, source = engines.model("gemma3")
    found = certificate_of(engines.engine(source, Scheme.INT8))
    assert found.figures is None and "no tokenizer" in found.remarks[0]


def test_what_is_not_measured_is_not_held(tmp_path: Path, speaking: Path) -> None:
    with pytest.raises(BuildError, match=r"--max-kl 0\.1 with --certify 0"):
        build(BuildOptions(str(speaking), tmp_path / "engine", certify=0, max_kl=0.1), Silent())


def test_weights_of_an_engine_are_read_back(quantised: Path, engines: Engines, speaking: Path) -> None:
    """In float32 to the bit, in int8 to half a step."""
    for folder, bound in ((engines.engine(speaking), 0.0), (quantised, 0.51)):
        with Engine.load(folder, threads=1) as engine:
            artifact = engine.artifact
            graph = graphs_of(folder, artifact.target)[-1]
            view, at = artifact.weights.view, artifact.weights.data_offset
            (down,) = (
                x for x in linears_of(graph, placed_in(folder, artifact.manifest), view, at) if x.node.loc == PLANTED
            )
            found = np.concatenate([down.rows(0, 32), down.rows(32, 64)])
            del down
        model = source_model(open_source(str(speaking))).module
        wanted = model.get_submodule(PLANTED).weight.numpy()  # type: ignore[operator]
        step = np.abs(wanted).max(1, keepdims=True) / 127
        assert (np.abs(found - wanted) <= bound * step).all()


def test_our_reading_is_transformers_own(speaking: Path, engines: Engines) -> None:
    for folder in (speaking, engines.model("llama-tied")[1]):
        source = open_source(str(folder))
        ours, theirs = source_model(source).module.state_dict(), reference_model(source).state_dict()
        assert ours.keys() == theirs.keys() and all(bool((ours[name] == theirs[name]).all()) for name in ours)


def test_the_texts_are_two_and_are_cut_evenly() -> None:
    assert 7_000 < len(held_out()) < len(calibration()) < 20_000
    known = set(held_out().split("\n\n")) & set(calibration().split("\n\n"))
    assert known == set()
    pieces = spread(range(1000, 2000), [1], 512, 4096)
    assert [len(piece) for piece in pieces] == [PIECE_TOKENS] * 4
    assert [piece[:2] for piece in pieces] == [[1, 1000], [1, 1250], [1, 1500], [1, 1750]]
    for prefix, longest in (([], 1), ([1], 1)):
        with pytest.raises(VerificationError, match="no text fits into sequences of 1 tokens"):
            spread(range(1000), prefix, 512, longest)
    assert spread(range(9), [1], 4, 2) == [[1, 0], [1, 4]] and len(spread(range(9), [], 512, 2)) == 4
    assert len(spread(range(1000), [], 10**6, 4096)) == 7 and [len(p) for p in spread(range(10), [], 512, 8)] == [8]
