"""The CUDA sampling kernel on the emulator, beside the CPU's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmc.codegen.cuda.arguments import COUNTS, Input, Operand, Result, StepArray
from llmc.codegen.cuda.sample.params import EDITED, SampleParams
from llmc.emulator.session import Argument
from llmc.runtime.cuda.step.sampling import SAMPLE_ROW, SamplingArrays, needed, pack, pack_logits_only
from llmc.runtime.step.row_sampling import SAMPLING_RECORD
from tests.cuda.harness import Lab, Shape
from tests.cuda.kernels import sample_rows
from tests.cuda.kernels.cpu_sample import Sampled, cpu_sample
from tests.cuda.kernels.references import Wrong


def cuda_sample(
    lab: Lab,
    p: SampleParams,
    logits: np.ndarray,
    sampling: Sequence[np.record],
    live: int | None = None,
    wanted: bool = True,
) -> Sampled:
    """logits f32[R, vocab]. `live`: rows that the step has; the grid covers all of them. wanted: tokens, not only
    logits."""
    count = len(logits)
    records = np.array(sampling, SAMPLING_RECORD)
    arrays = SamplingArrays.allocate(needed(records))
    if wanted:
        pack(records, arrays)
    else:
        pack_logits_only(count, arrays)
    padded = np.full((count, p.row_floats), np.nan, np.float32)
    padded[:, : p.vocab] = logits
    raw = arrays.rows.view(np.uint8).reshape(count, SAMPLE_ROW.itemsize)
    out = Sampled.blank(count)
    edited = lab.empty(padded.shape, np.float32)
    results = {name: lab.array(a) for name, a in vars(out).items()}
    given: dict[Operand, Argument] = {
        StepArray("sampling"): lab.array(raw),
        Input(0): lab.array(padded),
        COUNTS: lab.array(np.array([0, 0, count if live is None else live, 0], np.int32)),
        StepArray("history"): lab.array(_at_least_one(arrays.history)),
        StepArray("bias_ids"): lab.array(_at_least_one(arrays.bias_ids)),
        StepArray("bias"): lab.array(_at_least_one(arrays.bias)),
        EDITED: edited,
        **{Result(name): array for name, array in results.items()},
    }
    lab.launch(p, (count,), *[given[argument.operand] for argument in p.arguments])
    for row, copy in zip(arrays.rows, edited.numpy().view(np.uint32), strict=True):
        if not row["history_len"] and not row["num_bias"] and (copy != 0xFFFFFFFF).any():
            raise Wrong("sample: a row without edits was copied")
    return Sampled(**{name: a.numpy() for name, a in results.items()})


def differences(got: Sampled, want: Sampled) -> list[str]:
    """Every value whose bits differ (one NaN is as good as another)."""
    found = []
    for name in ("tokens", "logprob", "top_ids", "top_logprobs"):
        a, b = getattr(got, name), getattr(want, name)
        same = (a == b) | (np.isnan(a) & np.isnan(b) if a.dtype.kind == "f" else False)
        for i in np.argwhere(~same)[:3]:
            at = tuple(int(n) for n in i)
            found.append(f"{name}{list(at)}: got {a[at]!r}, the CPU has {b[at]!r}")
    return found


def _at_least_one(a: np.ndarray) -> np.ndarray:
    return a if len(a) else np.zeros(1, a.dtype)


def run(lab: Lab, p: SampleParams, shape: Shape, rng: np.random.Generator) -> None:
    """A case of shapes.py: `rows` rows of all kinds, and `behind` more in the bucket that the step does not have; no
    rows: those where bounds decide."""
    count, behind = shape["rows"], shape["behind"]
    assert isinstance(count, int) and isinstance(behind, int)
    if count:
        logits, chosen = sample_rows.rows(rng, count + behind, p.valid, p.vocab)
    else:
        logits, chosen = sample_rows.edges()
        count = len(logits)
    sampling = [c.record for c in chosen]
    got = cuda_sample(lab, p, logits, sampling, live=count)
    want = cpu_sample(logits, sampling, p.valid)
    for name, blank in vars(Sampled.blank(behind)).items():
        getattr(want, name)[count:] = blank
    if found := differences(got, want):
        raise Wrong("sample: " + "; ".join(found))
