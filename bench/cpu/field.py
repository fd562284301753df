"""Who races: their models made of one source, their programs installed, loaded and stopped until they are asked."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.cpu.llamacpp import LlamaCppContender, ModelWork, quantize
from bench.cpu.llmc_contender import LlmcContender, build_engine
from bench.dithered import source_file, write_dithered
from bench.peers.checkpoints import hf_folder, onnx_folder, openvino_folder
from bench.peers.contender import Contender, PeerError
from bench.peers.environments import environment, llamacpp
from bench.peers.process import ProcessContender
from llmc.ir.formats import Scheme
from llmc.ir.types import DType

PEERS = ("llama.cpp", "openvino", "onnxruntime", "vllm")
LLAMACPP_TYPES = ("Q4_0", "Q4_K_M", "Q8_0", "BF16")
PROGRAMS = Path(__file__).resolve().parents[1] / "peers"


@dataclass(frozen=True)
class Setting:
    """What the command says. `given`: peers that are installed elsewhere, by name: their programs' folder, or their
    environment. `stored`: llama.cpp's types that our engines are built from as they are."""

    work: Path
    model: str
    threads: int
    dtypes: tuple[str, ...]
    stored: tuple[str, ...]
    peers: tuple[str, ...]
    given: dict[str, Path]
    keep_engines: bool

    @property
    def stem(self) -> str:
        return Path(self.model).stem


@dataclass(frozen=True)
class Source:
    """One model, dithered to bf16, in the two forms that everyone's is made of."""

    gguf: Path
    folder: Path
    work: ModelWork

    @classmethod
    def of(cls, setting: Setting) -> Source:
        model = write_dithered(source_file(setting.model), setting.work / f"{setting.stem}.gguf")
        return cls(model, hf_folder(model, setting.work / f"{setting.stem}-hf"), ModelWork.of(model))

    @property
    def vocab_size(self) -> int:
        return self.work.vocab_size


Maker = Callable[[], Contender]


def field(setting: Setting, source: Source) -> Iterator[tuple[str, Maker]]:
    """Names, and what makes each contender: files that are missing, then the program."""
    for dtype in setting.dtypes:
        yield f"llmc {dtype}", partial(_ours, setting, source, dtype)
    for kind in setting.stored:
        yield f"llmc as {kind}", partial(_ours_as_stored, setting, source, kind)
    if "llama.cpp" in setting.peers:
        for kind in LLAMACPP_TYPES:
            yield f"llama.cpp {kind}", partial(_llamacpp, setting, source, kind)
    for bits in (4, 8):
        if "openvino" in setting.peers:
            yield f"OpenVINO int{bits}", partial(_openvino, setting, source, bits)
        if "onnxruntime" in setting.peers:
            yield f"ONNX Runtime int{bits}", partial(_onnxruntime, setting, source, bits)
    if "vllm" in setting.peers:
        yield "vLLM bf16", partial(_vllm, setting, source)


def enter(makers: Sequence[tuple[str, Maker]]) -> tuple[list[Contender], dict[str, str]]:
    """Those that can race, and why each other cannot."""
    contenders: list[Contender] = []
    absent: dict[str, str] = {}
    for name, make in makers:
        print(f"preparing {name}", file=sys.stderr)
        try:
            contenders.append(make())
        except (PeerError, subprocess.CalledProcessError) as error:
            absent[name] = str(error)
            print(f"{name} does not race: {error}", file=sys.stderr)
    return contenders, absent


def _ours(setting: Setting, source: Source, dtype: str) -> Contender:
    int8 = Scheme.named(dtype).operand.element is DType.I8
    return _engine(setting, source.gguf, dtype, dtype, int8)


def _ours_as_stored(setting: Setting, source: Source, kind: str) -> Contender:
    return _engine(setting, _quantised(setting, source, kind), f"as {kind}", None, kind != "BF16")


def _engine(setting: Setting, model: Path, name: str, dtype: str | None, int8: bool) -> Contender:
    engine = setting.work / f"{setting.stem}-{name.replace(' ', '-')}.engine"
    if not (setting.keep_engines and engine.exists()):
        build_engine(model, engine, dtype)
    return LlmcContender(engine, setting.threads, f"llmc {name}", int8)


def _programs(setting: Setting) -> Path:
    return llamacpp(setting.given.get("llama.cpp"), setting.work)


def _quantised(setting: Setting, source: Source, kind: str) -> Path:
    if kind == "BF16":
        return source.gguf
    return quantize(_programs(setting), source.gguf, setting.work / f"{setting.stem}-{kind}.gguf", kind)


def _llamacpp(setting: Setting, source: Source, kind: str) -> Contender:
    programs, model = _programs(setting), _quantised(setting, source, kind)
    read = ModelWork.of(model).weight_bytes
    said = subprocess.run([programs / "llama-server", "--version"], capture_output=True, text=True, check=False)
    lines = [line for line in (said.stdout + said.stderr).splitlines() if line.startswith("version")]
    sdists = [path.name.removesuffix(".tar.gz") for path in programs.parents[1].glob("*.tar.gz")]
    version = ", ".join(["llama.cpp", *sdists, *lines])
    return LlamaCppContender(programs, model, read, setting.threads, f"llama.cpp {kind}", kind != "BF16", version)


def _process(
    setting: Setting, source: Source, name: str, peer: str, model: Path, int8: bool, **variables: str
) -> Contender:
    python = environment(peer, setting.given.get(peer), setting.work) / "bin" / "python"
    return ProcessContender(
        name,
        python,
        PROGRAMS / f"{peer}_program.py",
        model,
        threads=setting.threads,
        vocab_size=source.vocab_size,
        int8=int8,
        environment=variables,
    )


def _openvino(setting: Setting, source: Source, bits: int) -> Contender:
    place = environment("openvino", setting.given.get("openvino"), setting.work)
    model = openvino_folder(place, source.folder, bits, setting.work / f"{setting.stem}-openvino-{bits}")
    return _process(setting, source, f"OpenVINO int{bits}", "openvino", model, True)


def _onnxruntime(setting: Setting, source: Source, bits: int) -> Contender:
    place = environment("onnxruntime", setting.given.get("onnxruntime"), setting.work)
    model = onnx_folder(place, source.folder, bits, setting.work / f"{setting.stem}-onnx-{bits}")
    return _process(setting, source, f"ONNX Runtime int{bits}", "onnxruntime", model, True)


def _vllm(setting: Setting, source: Source) -> Contender:
    place = environment("vllm", setting.given.get("vllm"), setting.work)
    variables = {
        "PATH": f"{place / 'bin'}:/usr/bin:/bin",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }
    return _process(setting, source, "vLLM bf16", "vllm", source.folder, False, **variables)
