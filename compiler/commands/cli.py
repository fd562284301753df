"""The command line. Heavy modules load inside the commands that need them, so that --help is quick."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from llmc.compiler.commands.bench_options import bench_options
from llmc.compiler.quality.budget import Budget
from llmc.ir.formats import KV_NAMES, Scheme
from llmc.passes.choose_formats import At

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


KV_DTYPES = {name: dtype for dtype, name in KV_NAMES.items()}


class SchemeText(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.3
    """A number format, as `Scheme.named` takes it."""

    name = "dtype"

    def convert(self, value: str | Scheme, param: click.Parameter | None, ctx: click.Context | None) -> Scheme:
        try:
            return value if isinstance(value, Scheme) else Scheme.named(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class BudgetText(click.ParamType):  # type: ignore[type-arg]
    """What formats may cost, as `Budget.named` takes it."""

    name = "budget"

    def convert(self, value: str | Budget, param: click.Parameter | None, ctx: click.Context | None) -> Budget:
        try:
            return value if isinstance(value, Budget) else Budget.named(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class AtText(click.ParamType):  # type: ignore[type-arg]
    """PATTERN=FORMAT."""

    name = "pattern=dtype"

    def convert(self, value: str | At, param: click.Parameter | None, ctx: click.Context | None) -> At:
        if isinstance(value, At):
            return value
        pattern, equals, scheme = value.rpartition("=")
        if not (equals and pattern):
            self.fail(f"expected PATTERN=FORMAT, got {value!r}", param, ctx)
        return At(pattern, SchemeText().convert(scheme, param, ctx))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="llmc")
def main() -> None:
    """Compile a HuggingFace causal LM into an engine, and run it."""
    # Its warnings are about training, or about what is refused by name here. It reads this when it is imported.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from llmc.compiler.commands.refusal import open_streams

    open_streams()


def refusing(action: Callable[[], T], *errors: type[Exception]) -> T:
    """Run an action; one of these errors, or one of files, becomes one line on stderr and exit code 2."""
    from llmc.compiler.commands.refusal import drop_output, refuse

    try:
        return action()
    except BrokenPipeError:
        raise  # whoever reads has seen enough: click ends quietly
    except OSError as error:
        drop_output()
        sys.exit(refuse(error))
    except errors as error:
        sys.exit(refuse(error))


@main.command()
@click.argument("model")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    help="Engine folder [default: ./NAME.engine, with a --dtype ./NAME-DTYPE.engine]",
)
@click.option("--target", default="cpu", show_default=True, help="One or several (h100,cpu): see `llmc targets`.")
@click.option("--dtype", type=SchemeText(), help="Of weights [default: as they are stored, bf16 where that is float].")
@click.option(
    "--kv-dtype", type=click.Choice(list(KV_DTYPES)), help="Of the KV cache [default: bf16, f32 with f32 weights]."
)
@click.option("--max-batch", type=click.IntRange(1, 4096), default=16, show_default=True, help="Requests at once.")
@click.option("--max-seq-len", type=click.IntRange(1), help="Prompt and answer [default: the model's].")
@click.option(
    "--step-tokens", type=click.IntRange(1, 65536), default=512, show_default=True, help="Of a prompt, at once."
)
@click.option("--passes", default="", help="Change passes: 'choose-formats{scheme=int8_int8g128}, -fuse-gates'.")
@click.option("--dump-ir", type=click.Path(path_type=Path, file_okay=False), help="Write the graph after each pass.")
@click.option(
    "--limits", type=click.Path(path_type=Path), help="A CPU's, by `bench/cpu/limits.py --json`, for the report."
)
@click.option("--quality", type=BudgetText(), help="Choose formats by what they cost: bits=4.8 a weight, or kl=0.05.")
@click.option("--gptq", is_flag=True, help="Round weights for the inputs that they have: minutes, less KL.")
@click.option("--calibrate", type=click.Path(path_type=Path), help="A text for --quality, --gptq [default: built in].")
@click.option("--at", multiple=True, type=AtText(), help="Format of modules: 'lm_head=int8', '*.mlp.*=int4'; repeated.")
@click.option("--certify", type=click.IntRange(0), help="Tokens to measure it on against MODEL [default: 512]; 0: not.")
@click.option("--max-kl", type=click.FloatRange(0), help="Fail if its mean KL from MODEL is more.")
def build(
    model: str,
    out: Path | None,
    target: str,
    dtype: Scheme | None,
    kv_dtype: str | None,
    max_batch: int,
    max_seq_len: int | None,
    step_tokens: int,
    passes: str,
    dump_ir: Path | None,
    limits: Path | None,
    quality: Budget | None,
    gptq: bool,
    calibrate: Path | None,
    at: tuple[At, ...],
    certify: int | None,
    max_kl: float | None,
) -> None:
    """Compile MODEL (a HuggingFace folder or hub id, or a .gguf file) into an engine."""
    from llmc.compiler.build_options import BuildOptions
    from llmc.compiler.commands.build_console import build_with_progress
    from llmc.compiler.sources.model_name import folder_title, gguf_stem

    path = Path(model).expanduser()
    name = gguf_stem(path) if path.suffix == ".gguf" else folder_title(path).rpartition("/")[2]
    folder = out or Path(f"{name}-{dtype}.engine" if dtype else f"{name}.engine")
    options = BuildOptions(
        model,
        folder,
        target,
        dtype or Scheme.BF16,
        max_batch,
        max_seq_len,
        step_tokens,
        passes,
        dump_ir,
        limits,
        as_stored=dtype is None,
        certify=certify,
        max_kl=max_kl,
        quality=quality,
        gptq=gptq,
        calibrate=calibrate,
        at=at,
        kv=KV_DTYPES[kv_dtype] if kv_dtype else None,
    )
    sys.exit(refusing(lambda: build_with_progress(options), ModuleNotFoundError))


def where_it_runs(command: F) -> F:
    """Options of commands that run an engine."""
    device = click.option(
        "--device", type=click.Choice(("cpu", "cuda")), help="[default: cuda where it runs, else cpu]"
    )
    emulate = click.option("--emulate", is_flag=True, help="Run a CUDA target without a GPU, slowly.")
    gpu = click.option("--emulate-gpu", help="Be this GPU: a100, rtx4090 ... [default: the one it was built for]")
    return device(emulate(gpu(command)))


def how_it_is_loaded(command: F) -> F:
    """Options of commands that serve many requests: limits within those of the build, and where it runs."""
    built = "[default: what the engine was built for]"
    batch = click.option("--max-batch", type=int, help=f"Requests at once {built}.")
    length = click.option("--max-seq-len", type=int, help=f"Prompt and answer {built}.")
    step = click.option("--step-tokens", "max_tokens", type=int, help=f"Of a step {built}.")
    kv = click.option(
        "--kv-memory", type=int, help="Bytes of KV cache [default: what it can use, half of what is free]."
    )
    threads = click.option("--threads", type=int, help="[default: the usable cores]")
    return batch(length(step(kv(threads(where_it_runs(command))))))


def emulating(context: click.Context, engine: Path, emulate: bool, emulate_gpu: str | None) -> None:
    """With --emulate or --emulate-gpu the process becomes an emulator that runs the command again."""
    if not emulate and emulate_gpu is None:
        return
    from llmc.compiler.commands.emulation import emulate as become
    from llmc.runtime.errors import RuntimeFailure

    refusing(lambda: become(context, engine, emulate_gpu), RuntimeFailure)


@main.command()
@click.argument("engine", type=click.Path(path_type=Path))
@click.option("-p", "--prompt", help="Answer this and stop; without it: what is piped in, or a chat.")
@click.option("-f", "--file", type=click.Path(path_type=Path), help="A text to put before the prompt; - is stdin.")
@click.option("--system", "--system-prompt", "system", help="The system message.")
@click.option("-n", "--max-tokens", "--predict", "max_tokens", type=int, help="Most tokens of an answer.")
@click.option("--temperature", "--temp", "temperature", type=float, help="0: greedy [default: the model's].")
@click.option("--top-k", type=int, help="Draw from so many best tokens; 0: from all.")
@click.option("--top-p", type=float, help="Draw from the best tokens that have this probability together.")
@click.option("--min-p", type=float, help="Draw from tokens this probable, beside the best.")
@click.option("--repeat-penalty", "--repetition-penalty", "repetition_penalty", type=float, help="1: off.")
@click.option("--presence-penalty", type=float, help="Of tokens that the answer has; 0: off.")
@click.option("--frequency-penalty", type=float, help="Each time that the answer has them; 0: off.")
@click.option("--seed", type=int, help="Same seed, same answer.")
@click.option("--stop", multiple=True, help="The answer ends before this text; may be repeated.")
@click.option("--raw", is_flag=True, help="Continue the prompt as plain text, without the chat template.")
@click.option("--quiet", is_flag=True, help="Print the answer alone.")
@click.option("--threads", type=int, help="[default: the usable cores]")
@where_it_runs
@click.pass_context
def run(context: click.Context, /, engine: Path, emulate: bool, emulate_gpu: str | None, **options: Any) -> None:
    """Answer a prompt, or chat, with ENGINE."""
    emulating(context, engine, emulate, emulate_gpu)
    from llmc.runtime.errors import RuntimeFailure
    from llmc.runtime.terminal.run import RunOptions
    from llmc.runtime.terminal.run import run as run_engine

    sys.exit(refusing(lambda: run_engine(RunOptions(engine, **options)), RuntimeFailure))


@main.command()
@click.argument("engines", nargs=-1, required=True, metavar="ENGINE...")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: any free one.")
@click.option("--uds", type=click.Path(path_type=Path), help="Listen on a unix socket instead.")
@click.option("--api-key", "keys", multiple=True, help="Who has none of these is refused; also LLMC_API_KEY.")
@click.option("--api-key-file", "key_file", type=click.Path(path_type=Path), help="Keys, one on a line.")
@click.option("--cors", "origins", multiple=True, help="Let pages of this origin ask; may be repeated; *: all.")
@click.option("--restart", is_flag=True, help="If the engines' process dies, start another one.")
@click.option("--reasoning-in-content", is_flag=True, help="Leave reasoning, with its tags, in the content.")
@click.option("--log-json", is_flag=True, help="One JSON object a line.")
@click.option("--queue", type=int, help="Requests that may wait; one more is refused [default: 2048].")
@click.option("--otel", is_flag=True, help="A span for each request, to where OTEL_EXPORTER_OTLP_ENDPOINT says.")
@how_it_is_loaded
@click.pass_context
def serve(context: click.Context, /, emulate: bool, emulate_gpu: str | None, **options: Any) -> None:
    """Serve ENGINE, or several under one address, to OpenAI's clients. NAME=FOLDER gives an engine another name."""
    from llmc.compiler.commands.serving import serve_engines

    serve_engines(context, emulate, emulate_gpu, options)


@main.command()
@click.argument("engine")
@click.argument("input", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("output", type=click.Path(path_type=Path, dir_okay=False))
@how_it_is_loaded
@click.pass_context
def batch(
    context: click.Context,
    /,
    engine: str,
    input: Path,
    output: Path,
    emulate: bool,
    emulate_gpu: str | None,
    device: str | None,
    **load: Any,
) -> None:
    """Answer INPUT, a file in OpenAI's batch format, with ENGINE (or NAME=ENGINE). Killed on the way, it goes on."""
    from llmc.compiler.commands.batching import run_batch

    run_batch(context, engine, (input, output), emulate, emulate_gpu, device, load)


@main.command()
@click.argument("model_or_engine")
@click.option("--roofline", is_flag=True, help="Predict its speed on targets instead: of an engine, or of a model.")
@click.option("--profile", is_flag=True, help="Measure, on this machine's CPU, what an engine's kernels take.")
@click.option("--target", help="With --roofline, with commas [default: an engine's, or h100,h200,a100].")
@click.option("--batch", help="Sequences at once, separated by commas [default: 1,8,64; to measure: 1].")
@click.option(
    "--length",
    type=click.IntRange(1),
    help="Tokens of each sequence [default: 1024, or what the model has; to measure: 128].",
)
@click.option("--chunk", type=click.IntRange(1), help="Most tokens of a prefill step [default: 2048].")
@click.option("--dtype", type=SchemeText(), help="Of a model's weights [default: bf16].")
@click.option("--limits", type=click.Path(path_type=Path), help="A CPU's, by `bench/cpu/limits.py --json`.")
@click.option("--kernels", is_flag=True, help="Show kernel by kernel for every target and batch.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def inspect(model_or_engine: str, roofline: bool, profile: bool, **options: Any) -> None:
    """Show what an engine holds: what fused and what did not and why, kernels, bytes."""
    from llmc.runtime.errors import RuntimeFailure

    if profile:
        sys.exit(measured(Path(model_or_engine), roofline, options))
    if roofline:
        from llmc.compiler.commands.roofline_console import RooflineOptions, show_roofline

        given = {name: value for name, value in options.items() if value is not None}
        sys.exit(refusing(lambda: show_roofline(RooflineOptions(model_or_engine, **given)), ModuleNotFoundError))
    from llmc.compiler.commands.inspection import show_engine

    if lone := [name for name, value in options.items() if value]:
        raise click.UsageError(f"--{'json' if lone[0] == 'as_json' else lone[0]} goes with --roofline")
    refusing(lambda: show_engine(Path(model_or_engine)), RuntimeFailure)


def measured(engine: Path, roofline: bool, options: dict[str, Any]) -> int:
    """`inspect --profile`; the exit code."""
    from llmc.compiler.commands.profile_console import show_profile

    batch, length, as_json = (options.pop(name) for name in ("batch", "length", "as_json"))
    if lone := ["roofline"] * roofline + [name for name, value in options.items() if value]:
        raise click.UsageError(f"--{lone[0]} does not go with --profile")
    return refusing(lambda: show_profile(engine, batch, length, as_json), ModuleNotFoundError)


@main.command()
def targets() -> None:
    """List the targets of `llmc build`."""
    from llmc.compiler.commands.inspection import show_targets

    show_targets()


@main.command()
@click.argument("engine", type=click.Path(path_type=Path))
@click.argument("model")
@click.option("--texts", type=click.Path(path_type=Path), help="One text per line [default: built in].")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@where_it_runs
@click.pass_context
def verify(
    context: click.Context,
    /,
    engine: Path,
    model: str,
    texts: Path | None,
    as_json: bool,
    device: str | None,
    emulate: bool,
    emulate_gpu: str | None,
) -> None:
    """Compare ENGINE with MODEL: text with the source's own tokenizer, logits with transformers in float32,
    teacher-forced, position by position. Ends with PASS or FAIL, and exit code 0 or 1."""
    emulating(context, engine, emulate, emulate_gpu)

    def action() -> int:
        from llmc.compiler.commands.verify_console import verify_engine

        return verify_engine(engine, model, texts, as_json, device)

    sys.exit(refusing(action, ModuleNotFoundError))


@main.command()
@click.argument("engine", type=click.Path(path_type=Path), required=False)
@bench_options
def bench(engine: Path | None, **options: Any) -> None:
    """Measure ENGINE behind `llmc serve`, which this starts, or a server by its --url.

    Exit code 1 if requests failed."""

    def action() -> int:
        from llmc.compiler.commands.bench_run import run_bench

        return run_bench(engine, options)

    from llmc.codegen.cpu.target import TargetError
    from llmc.runtime.errors import RuntimeFailure

    sys.exit(refusing(action, RuntimeFailure, TargetError))
