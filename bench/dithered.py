"""A copy of a GGUF file whose weights have been anywhere in the source's rounding step, as a trained model's have.

    python bench/dithered.py smollm2 --gguf OUT.gguf [--hf OUT_FOLDER]
    python bench/dithered.py FILE.gguf --gguf OUT.gguf

What is published small is quantised already: its weights lie on a grid of 4 bits, so a 4-bit format loses nothing of
them and every comparison of formats flatters itself. The copy adds to every quantised weight a deterministic, uniform
+-1/2 of its block's step and rounds to bf16: a model about as good as the source, off every grid. Tensors that the
file keeps in floats are as they were.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from zlib import crc32

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type
from gguf import quants

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as a script: this checkout's bench and tests

from bench.peers.checkpoints import hf_folder
from llmc.compiler.sources.demo import DEMO_MODELS, fetch_demo, find_demo

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

FLOATS = (Type.F32, Type.F16, Type.BF16)
MOSTLY_BF16 = 32  # general.file_type of what is written


class DitherError(Exception):
    """The message says which tensor cannot be dithered."""


def _half(data: Bytes) -> Floats:
    return np.ascontiguousarray(data).view(np.float16).astype(np.float32)


def steps(blocks: Bytes, kind: Type) -> Floats:
    """[blocks, groups]: by how much neighbouring codes of each group of a block differ in weight."""
    if kind in (Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0):
        return _half(blocks[:, :2])
    if kind in (Type.Q4_K, Type.Q5_K):
        scales, _ = quants.Q4_K.get_scale_min(np.ascontiguousarray(blocks[:, 4:16]))
        return np.asarray(_half(blocks[:, :2]) * scales.astype(np.float32))
    if kind is Type.Q6_K:
        scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8)
        return np.asarray(_half(blocks[:, 208:]) * scales.astype(np.float32))
    raise DitherError(f"{kind.name} has no steps known here")


def dither(data: Bytes, kind: Type, seed: int) -> Floats:
    """The weights of quantised rows (uint8 [N, bytes of a row]), each moved by up to half its group's step."""
    values: Floats = quants.dequantize(data, kind)
    _, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    step = np.abs(steps(data.reshape(-1, block_bytes), kind))
    draw = np.random.default_rng(seed)
    grouped = values.reshape(step.size, -1)
    moves = draw.random(grouped.shape, dtype=np.float32) - np.float32(0.5)
    return np.asarray(grouped + moves * step.reshape(-1, 1)).reshape(values.shape)


def write_dithered(source: Path, out: Path) -> Path:
    """Every quantised tensor in bf16, dithered; everything else as in `source`. Made once, renamed when whole."""
    if out.is_file():
        return out
    reader = gguf.GGUFReader(source)
    part = out.with_name(f".{out.name}.{os.getpid()}")
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        writer = gguf.GGUFWriter(part, str(reader.fields["general.architecture"].contents()))
        _copy_facts(reader, writer)
        for tensor in reader.tensors:
            data, kind = _dithered(tensor)
            writer.add_tensor(tensor.name, data, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)
    return out


def _dithered(tensor: gguf.ReaderTensor) -> tuple[npt.NDArray[np.generic], Type]:
    if tensor.tensor_type in FLOATS:
        return tensor.data, tensor.tensor_type
    try:
        values = dither(np.asarray(tensor.data, np.uint8), tensor.tensor_type, crc32(tensor.name.encode()))
    except DitherError as error:
        raise DitherError(f"{tensor.name}: {error}") from error
    return np.asarray(quants.quantize(values, Type.BF16)), Type.BF16


def _copy_facts(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue  # the writer's own
        value = MOSTLY_BF16 if name == "general.file_type" else field.contents()
        writer.add_key_value(name, value, field.types[0], field.types[-1] if len(field.types) > 1 else None)


def source_file(name: str) -> Path:
    """A .gguf file, or a demo model by its name, fetched."""
    try:
        find_demo(name)
    except KeyError:
        return Path(name)
    return fetch_demo(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help=f"a .gguf file, or {', '.join(DEMO_MODELS)}")
    parser.add_argument("--gguf", type=Path, required=True, help="the copy, in bf16")
    parser.add_argument("--hf", type=Path, help="also as a HuggingFace folder in bf16")
    args = parser.parse_args()
    print(write_dithered(source_file(args.model), args.gguf))
    if args.hf:
        print(hf_folder(args.gguf, args.hf))


if __name__ == "__main__":
    main()
