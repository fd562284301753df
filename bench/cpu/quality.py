"""How far a contender's logits are from those of transformers in float32, on the same tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.peers.contender import Contender, Logits

HELD_OUT = Path(__file__).resolve().parents[2] / "compiler" / "verify" / "held_out.txt"
ROWS = 64  # that are compared at once: a vocabulary of float64 each


@dataclass(frozen=True)
class Quality:
    """KL in nats, of the contender's distribution from the reference's."""

    mean_kl: float
    p99_kl: float
    top1: float  # fraction of positions with the reference's best token
    positions: int


def write_tokens(folder: Path, text: Path, sequences: int, length: int, out: Path) -> Path:
    """int32 [sequences, length]: a text in the tokens of a HuggingFace folder, cut; each begins as the model's do.

    Fewer sequences where the text is short.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(text.read_text(), add_special_tokens=False)["input_ids"]
    start = [tokenizer.bos_token_id] if tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id] else []
    step = length - len(start)
    cut = [start + ids[at : at + step] for at in range(0, len(ids) - step + 1, step)][:sequences]
    if not cut:
        raise ValueError(f"{text}: {len(ids)} tokens, expected at least {step}")
    np.save(out, np.array(cut, np.int32))
    return out


def reference_logits(folder: Path, tokens: Path, out: Path) -> Logits:
    """transformers' in float32, kept in `out`; computed where they are not those of these tokens."""
    made_of = out.with_suffix(".sha256")
    digest = sha256(tokens.read_bytes() + str(folder).encode()).hexdigest()
    if not (out.is_file() and made_of.is_file() and made_of.read_text() == digest):
        _compute_reference(folder, np.load(tokens), out)
        made_of.write_text(digest)
    found: Logits = np.load(out, mmap_mode="r")
    return found


def _compute_reference(folder: Path, ids: npt.NDArray[np.int32], out: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found: Logits | None = None
    with torch.no_grad():
        for number, sequence in enumerate(ids):
            logits = model(input_ids=torch.from_numpy(sequence[None].astype(np.int64)), use_cache=False).logits[0]
            if found is None:
                shape = (*ids.shape, logits.shape[1])
                found = np.lib.format.open_memmap(out, mode="w+", dtype=np.float32, shape=shape)
            found[number] = logits.numpy()


def judge(found: Logits, reference: Logits) -> Quality:
    """Both [sequences, T, at least the vocabulary]: what pads the wider is left out."""
    width = min(found.shape[2], reference.shape[2])
    theirs, ours = (logits.reshape(-1, logits.shape[2])[:, :width] for logits in (reference, found))
    kl, same = [], []
    for at in range(0, len(theirs), ROWS):
        a, b = (_log_softmax(rows[at : at + ROWS]) for rows in (ours, theirs))
        kl.append((np.exp(b) * (b - a)).sum(1))
        same.append(a.argmax(1) == b.argmax(1))
    every = np.concatenate(kl)
    return Quality(float(every.mean()), float(np.quantile(every, 0.99)), float(np.concatenate(same).mean()), len(every))


def _log_softmax(rows: Logits) -> npt.NDArray[np.float64]:
    shifted = rows.astype(np.float64) - rows.max(1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(1, keepdims=True)))


def kept(file: Path, key: str, find: Callable[[], Quality | None]) -> Quality | None:
    """What `find` found under the same key, or finds now: the peers' models do not change from run to run."""
    if file.is_file():
        stored = json.loads(file.read_text())
        if stored["key"] == key:
            return Quality(**stored["quality"]) if stored["quality"] else None
    found = find()
    file.write_text(json.dumps({"key": key, "quality": asdict(found) if found else None}) + "\n")
    return found


def quality_of(contender: Contender, tokens: Path, reference: Logits, scratch: Path) -> Quality | None:
    """None where the contender does not give its logits. `scratch`: a file for them, removed at the end."""
    try:
        found = contender.logits(tokens, scratch)
        return judge(found, reference) if found is not None else None
    finally:
        scratch.unlink(missing_ok=True)
