"""Engine folders for tests: the reference device, a byte-level tokenizer, a chat template."""

import json
import shutil
import struct
from pathlib import Path

import reference_oracle as oracle
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from llmc.runtime.artifact.artifact import seal
from llmc.runtime.artifact.features import Machine
from llmc.runtime.artifact.kv_layout import KvGroup, KvLayout, KvSlot
from llmc.runtime.artifact.manifest import (
    ArenaBytes,
    GenerationDefaults,
    Limits,
    Manifest,
    ModelSummary,
    SpecialTokens,
    TargetEntry,
    TargetMemory,
)

ABI_FOLDER = Path(__file__).parents[2] / "templates" / "cpu"
BOS, IM_START, IM_END = 259, 260, 261
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_level_tokenizer():
    """256 byte tokens, three merges, three control tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the")]
    vocab = {token: i for i, token in enumerate([*alphabet, *(a + b for a, b in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    control = [AddedToken(t, special=True, normalized=False) for t in ("<|bos|>", "<|im_start|>", "<|im_end|>")]
    tokenizer.add_special_tokens(control)
    assert tokenizer.get_vocab_size() == oracle.NUM_VALID
    assert tokenizer.token_to_id("<|im_end|>") == IM_END
    return tokenizer


def kv_layout(windows):
    """What reference_device.cc says of itself: blocks of group g hold (g + 1) * 16 bytes a position."""
    sizes = [16 * (g + 1) for g in range(len(windows))]
    slots = (KvSlot("layer", 1, 2, 2, "f32"),)
    groups = (KvGroup(w, size * oracle.BLOCK_TOKENS, size, slots) for w, size in zip(windows, sizes, strict=True))
    return KvLayout(oracle.BLOCK_TOKENS, tuple(groups))


def target(**changes):
    """The reference device as a target of an engine."""
    fields = dict(
        kind="cpu",
        name="cpu",
        arch=Machine.this().arch,
        features=(),
        kernels="kernels/cpu",
        plans="plans/cpu",
        kv=kv_layout((None,)),
        memory=TargetMemory(8, 16, ArenaBytes(0, 0, 0, 0)),
    )
    return TargetEntry(**{**fields, **changes})


def manifest(**changes):
    fields = dict(
        producer={"llmc": "test"},
        targets=(target(),),
        model=ModelSummary("reference", "Reference", "f32", 1, oracle.VOCAB, oracle.NUM_VALID, 256),
        limits=Limits(max_seq_len=256, max_batch=8, max_tokens=64),
        tokens=SpecialTokens(BOS, (IM_END,), None, False),
        generation=GenerationDefaults(),
        files={},
    )
    return Manifest(**{**fields, **changes})


def safetensors_bytes(data, name="salt"):
    """One uint8 tensor whose data section starts at a multiple of 4096."""
    header = json.dumps({name: {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}}).encode()
    header += b" " * (-(8 + len(header)) % 4096)
    return struct.pack("<Q", len(header)) + header + data


def fill_engine(folder, library, tokenizer=True, template=TEMPLATE, config=None, **changes):
    """Write an engine's files into an existing empty folder, and seal it."""
    (folder / "kernels/cpu/src").mkdir(parents=True)
    shutil.copy(library, folder / "kernels/cpu/model.so")
    (folder / "kernels/cpu/src/model.cc").write_text("// generated\n")
    (folder / "weights.safetensors").write_bytes(safetensors_bytes(struct.pack("<Q", oracle.SALT)))
    if tokenizer:
        byte_level_tokenizer().save(str(folder / "tokenizer.json"))
        settings = {"bos_token": "<|bos|>", "eos_token": {"content": "<|im_end|>"}} if config is None else config
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return seal(folder, manifest(**changes))
