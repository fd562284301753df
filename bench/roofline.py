"""The predictions of docs/roofline.md: writes them, and the pictures, into it.

python bench/roofline.py [--out docs]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path

from roofline_pictures import bars, ms, under_the_roof

from llmc.codegen.cuda.target.gpus import GPUS
from llmc.compiler.roofline.open_subject import open_subject
from llmc.compiler.roofline.predict import Prediction, predict
from llmc.compiler.roofline.subject import Subject
from llmc.compiler.targets.find import find_target

CONFIGS = Path(__file__).parent / "configs"
MODELS = ("Llama-3.1-8B", "Llama-3.2-1B", "Qwen3-0.6B", "SmolLM2-135M")
TARGETS = ("h100", "h200", "a100")
BATCHES = (1, 8, 64)
LENGTH = 1024
BEGIN, END = "<!-- begin: python bench/roofline.py -->", "<!-- end -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "docs")
    args = parser.parse_args()
    found: dict[str, dict[str, Prediction]] = {}
    for name in MODELS:
        subject = open_subject(str(CONFIGS / name), None)
        found[name] = {t: _predict(subject, t) for t in TARGETS}
    (args.out / "roofline.svg").write_text(bars(found, LENGTH))
    picture = under_the_roof(found[MODELS[0]]["h100"], GPUS["h100"], MODELS[0])
    (args.out / "roofline-kernels.svg").write_text(picture)
    page = args.out / "roofline.md"
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text("\n".join([before + BEGIN, *tables(found), END]) + after)


def _predict(subject: Subject, name: str) -> Prediction:
    target = find_target(name)
    return predict(subject.lowered(target), target, BATCHES, LENGTH)


def tables(found: Mapping[str, Mapping[str, Prediction]]) -> Iterator[str]:
    """Markdown."""
    for name, by_target in found.items():
        sizes = next(iter(by_target.values()))
        yield ""
        yield f"**{name}**: weights {sizes.weight_bytes / 1e9:.3f} GB, KV {sizes.kv_bytes_per_token:,} bytes per token"
        yield ""
        yield "| GPU | batch | TPOT floor | expected | floor/exp. | tokens/s | TTFT floor | expected | largest batch |"
        yield "|---|--:|--:|--:|--:|--:|--:|--:|--:|"
        for target, prediction in by_target.items():
            for p in prediction.points:
                assert p.tpot.floor_s and p.tpot.expected_s and p.ttft.floor_s and p.ttft.expected_s
                yield (
                    f"| {target} | {p.batch} | {ms(p.tpot.floor_s)} | {ms(p.tpot.expected_s)} | {p.tpot.fraction:.0%} "
                    f"| {p.batch / p.tpot.expected_s:,.0f} | {ms(p.ttft.floor_s)} | {ms(p.ttft.expected_s)} "
                    f"| {prediction.largest_batch:,} |"
                )
    yield ""


if __name__ == "__main__":
    main()
