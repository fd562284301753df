"""What a card's report needs, made on a machine without one: hollow engines, and the cubins of all checks.

    python bench/gpu/prepare.py [--target h200] [--out bench/gpu/prepared] [--models A,B]

A few MB for each model, from the config.json's in bench/configs; no weights, which run.py fills in where it runs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [path for path in (str(HERE), str(HERE.parents[1] / "tests" / "cuda")) if path not in sys.path]

from end_to_end import TINY, Workload  # noqa: E402  (the path is set above)

from llmc.codegen.cuda.target.capabilities import TARGETS  # noqa: E402
from llmc.codegen.cuda.target.gpus import GPUS  # noqa: E402
from llmc.codegen.hollow import MANIFEST, fill, is_hollow  # noqa: E402
from llmc.runtime.errors import EngineError  # noqa: E402

CONFIGS = HERE.parent / "configs"
PREPARED = HERE / "prepared"
MODELS = ("Qwen3-0.6B", "Llama-3.2-1B", "Llama-3.1-8B")  # the quickest first
STEP_TOKENS = 2048  # of a prompt, at once: as docs/roofline.md predicts
# A model of the same kind that an emulated card runs in seconds: what the config says otherwise.
SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 320,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def hollow_path(prepared: Path, target: str, model: str) -> Path:
    """Where a hollow engine is put."""
    return prepared / "engines" / target / model


def check_models(models: Sequence[str], prepared: Path) -> None:
    """Raises ValueError for a model that is no name, or has no config and is not prepared."""
    for model in models:
        if Path(model).name != model:
            raise ValueError(f"--models {model}: expected the name of a folder, not a path")
        if not (CONFIGS / model / "config.json").is_file() and not any(prepared.glob(f"engines/*/{model}/{MANIFEST}")):
            known = ", ".join(sorted(folder.name for folder in CONFIGS.iterdir() if folder.is_dir()))
            raise ValueError(f"--models {model}: neither prepared in {prepared} nor in {CONFIGS}: {known}")


def check_folder(out: Path, option: str) -> None:
    """Raises ValueError where no file can be written, before anything takes time."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise ValueError(f"{option} {out}: cannot be written: {error.strerror}") from error


def code_digest(root: Path = HERE.parents[1]) -> str:
    """Of all sources that decide what an engine is. It is kept beside an engine, which does not say itself."""
    digest = hashlib.sha256()
    for layer in ("compiler", "passes", "codegen", "templates/cuda", "runtime"):
        for path in sorted(p for p in (root / layer).rglob("*") if p.suffix in (".py", ".cuh", ".j2")):
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _digest_file(engine: Path) -> Path:
    return engine.with_name(f"{engine.name}.sources")


def is_of_this_checkout(engine: Path) -> bool:
    """Whether a hollow engine was prepared from the sources that are here now."""
    file = _digest_file(engine)
    return file.is_file() and file.read_text() == code_digest()


def find_prepared(prepared: Path, target: str, model: str) -> Path | None:
    """The hollow engine for a GPU, or for another that runs the same code, whose kernels were chosen by its figures."""
    arch = GPUS[target].arch
    alike = [target, *(name for name, gpu in GPUS.items() if gpu.arch == arch and name != target)]
    return next((p for p in (hollow_path(prepared, name, model) for name in alike) if is_hollow(p)), None)


def prepare_engine(model: str, prepared: Path, target: str, tiny: bool) -> Path:
    """The hollow engine of a model for a GPU, from its config. Needs llmc[build,cuda]; raises what a build does."""
    from llmc.compiler.build import BuildOptions, Progress, build

    work = TINY if tiny else Workload()
    out = hollow_path(prepared, target, model)
    with tempfile.TemporaryDirectory() as temporary:
        config = CONFIGS / model
        if tiny:
            config = Path(temporary) / model
            config.mkdir()
            settings = json.loads((CONFIGS / model / "config.json").read_text()) | SMALL
            (config / "config.json").write_text(json.dumps(settings))
        options = BuildOptions(
            str(config),
            out,
            target,
            max_batch=max(work.batches),
            max_seq_len=work.max_seq_len,
            step_tokens=16 if tiny else STEP_TOKENS,
            hollow=True,
        )
        build(options, Progress())
    _digest_file(out).write_text(code_digest())
    return out


def engine_for(model: str, prepared: Path, target: str, scratch: Path, tiny: bool) -> dict[str, Any]:
    """The item of the report: an engine at scratch/model, filled with weights, or why there is none."""
    start = time.monotonic()
    hollow = find_prepared(prepared, target, model)
    made_here = hollow is None
    if hollow is None:
        try:
            hollow = prepare_engine(model, scratch / "prepared", target, tiny)
        except Exception as error:  # a machine that runs engines may lack all that builds them
            return {"error": f"no {model} for {target} is prepared; here: {type(error).__name__}: {error}"}
    made = time.monotonic()
    try:
        manifest = fill(hollow, scratch / model, workers=os.cpu_count() or 1)
    except EngineError as error:  # damaged, or of another version
        return {"error": str(error)}
    return {
        "error": "",
        "built_for": manifest.targets[0].name,
        "made_here": made_here,
        "old": not is_of_this_checkout(hollow),
        "make_s": made - start,
        "fill_s": time.monotonic() - made,
        "bytes": sum(file.bytes for file in manifest.files.values()),
    }


def sources(arch: str, tiny: bool) -> Iterator[str]:
    """Of every kernel that checks and timings launch, models apart."""
    from cases import TIMED, checked, launched_for
    from harness import TOUCH
    from limits import COPY, MMA, READ, WGMMA
    from primitives import CHECKS

    from llmc.codegen.cuda.kernel import render

    target = TARGETS[arch]
    yield from (TOUCH, COPY, READ, MMA, *([WGMMA] if target.has("wgmma") else []))
    for check in CHECKS:
        if all(target.has(need) for need in check.needs):
            yield from check.sources
    cases = [*checked(tiny), *(() if tiny else TIMED)]
    for params in dict.fromkeys(launched for case in cases for launched in launched_for(case.params)):
        if params.rejects(target) is None:
            yield render(params, "kernel")


def prepare_cubins(prepared: Path, arch: str, tiny: bool) -> int:
    """Compiles what neither lies there nor in the user's cache; how many there are."""
    from card import cubin_path

    from llmc.codegen.cuda.target.nvrtc import cached_cubin
    from llmc.emulator.cache import cache_dir

    def one(source: str) -> None:
        path = cubin_path(prepared / "cubins", source, arch)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file():
            temporary = path.with_suffix(f".{os.getpid()}.tmp")
            shutil.copyfile(cached_cubin(source, arch, cache_dir() / "cubins"), temporary)
            temporary.replace(path)

    wanted = list(dict.fromkeys(sources(arch, tiny)))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(one, wanted))
    return len(wanted)


def _prepare(args: argparse.Namespace, models: Sequence[str]) -> None:
    start = time.monotonic()
    count = prepare_cubins(args.out, GPUS[args.target].arch, args.tiny)
    print(f"{count} cubins of checks and timings, {time.monotonic() - start:.0f} s", flush=True)
    for model in models:
        start = time.monotonic()
        folder = prepare_engine(model, args.out, args.target, args.tiny)
        weights = json.loads((folder / MANIFEST).read_text())["targets"][0]["memory"]["weights_bytes"]
        size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
        print(
            f"{model}: {size / 1e6:.1f} MB without {weights / 1e9:.2f} GB of weights, {time.monotonic() - start:.0f} s",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PREPARED)
    parser.add_argument("--target", default="h200", choices=GPUS, help="the GPU (default: h200)")
    parser.add_argument("--models", default=",".join(MODELS), help=f"folders of {CONFIGS.name} (default: %(default)s)")
    parser.add_argument("--tiny", action="store_true", help="models and checks of a size that an emulated card runs")
    args = parser.parse_args()
    models = tuple(filter(None, args.models.split(",")))
    try:
        check_models(models, args.out)
        check_folder(args.out, "--out")
    except ValueError as error:
        parser.error(str(error))
    try:
        _prepare(args, models)
    except ModuleNotFoundError as error:
        parser.error(f"{error.name} is not installed: pip install 'llmc[build,cuda]'")
    return 0


if __name__ == "__main__":
    sys.exit(main())
