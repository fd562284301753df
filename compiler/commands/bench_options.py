"""The options of `llmc bench`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
_PATH = click.Path(path_type=Path)

_OPTIONS = (
    # what is measured
    click.option("--url", help="Measure a server that runs: any OpenAI-compatible one, http://HOST:PORT."),
    click.option("--in-process", is_flag=True, help="Serve ENGINE in this process: no HTTP, no client."),
    click.option("--offline", is_flag=True, help="Prefill, decode and batches of ENGINE alone, of one length."),
    click.option("--ablate", is_flag=True, help="Take one serving technique of ENGINE away at a time."),
    # the load
    click.option("--concurrency", type=int, help="So many requests in flight, always [default: 8]."),
    click.option("--rate", type=float, help="Poisson arrivals instead: requests a second."),
    click.option("--sweep", help="Several loads: concurrency=1,2,4,8 or rate=0.5,1,2."),
    click.option("--requests", type=click.IntRange(1), default=32, show_default=True, help="Of a run."),
    click.option("--prompt-len", default="uniform:32-512", show_default=True, help="Or 128, lognormal:200,0.8,2000."),
    click.option("--output-len", default="uniform:16-256", show_default=True, help="The same; no answer is shorter."),
    click.option("--trace", type=_PATH, help="JSON lines instead: arrival, prompt or prompt_len, output_len, class."),
    click.option("--prefix-share", type=float, default=0.0, help="Of requests that begin with a shared prefix: 0..1."),
    click.option("--prefix-len", type=int, default=0, help="Tokens of a shared prefix."),
    click.option("--prefix-count", type=int, default=1, help="How many shared prefixes there are."),
    click.option("--classes", help="Latency classes by weight: interactive=3,batch=1."),
    click.option("--seed", type=int, default=7, show_default=True, help="The same seed, the same requests."),
    click.option(
        "--repetitions", type=click.IntRange(1), default=1, show_default=True, help="Rounds; medians are shown."
    ),
    click.option("--warmup", type=click.IntRange(0), default=8, show_default=True, help="Requests before the first."),
    click.option("--batches", default="8,16", show_default=True, help="Of --offline, beside single sequences."),
    # by what it is judged
    click.option("--slo", help="Count answers within it: ttft:500ms,tpot:50ms,e2e:10s."),
    click.option("--price-per-hour", type=float, help="Of the machine: shows the price of a million tokens."),
    click.option("--limits", type=_PATH, help="A CPU's, by `bench/cpu/limits.py --json`: shows MFU and MBU."),
    click.option("--json", type=_PATH, help="Write everything that was found to this file."),
    click.option("--png", type=_PATH, help="Draw latency against throughput over the sweep."),
    # how the server is spoken to
    click.option("--model", help="Of a server that has several [default: its first]."),
    click.option("--chat", is_flag=True, help="/v1/chat/completions with text [default: /v1/completions]."),
    click.option("--vocab-size", type=click.IntRange(1), help="Prompts of token ids below it [default: as it takes]."),
    click.option("--extra-body", help='JSON: more fields of every request, {"priority": 1}; null leaves one out.'),
    click.option("--api-key", envvar="OPENAI_API_KEY", help="[default: $OPENAI_API_KEY]"),
    click.option("--timeout", type=float, default=600.0, show_default=True, help="Seconds for one answer."),
    # how ENGINE is loaded
    click.option("--max-batch", type=int, help="Requests at once [default: the engine's]."),
    click.option("--max-seq-len", type=int, help="Prompt and answer [default: the engine's]."),
    click.option("--threads", type=int, help="[default: the usable cores]"),
    click.option("--kv-memory", type=int, help="Bytes of the KV cache."),
    click.option("--device", type=click.Choice(("cpu", "cuda")), help="[default: cuda where it runs, else cpu]"),
)


def bench_options(command: F) -> F:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
