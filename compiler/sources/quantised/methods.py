"""Methods of quantisation by the names that config.json gives them: those that are read, and why not the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from llmc.compiler.sources.quantised.awq import Awq
from llmc.compiler.sources.quantised.bitsandbytes import BitsAndBytes
from llmc.compiler.sources.quantised.compressed import CompressedTensors
from llmc.compiler.sources.quantised.fp8 import Fp8
from llmc.compiler.sources.quantised.gptq import Gptq
from llmc.compiler.sources.quantised.hqq import Hqq
from llmc.compiler.sources.quantised.modelopt import ModelOpt
from llmc.compiler.sources.quantised.module import Module, Reading
from llmc.compiler.sources.quantised.mxfp4 import Mxfp4
from llmc.compiler.sources.quantised.stated import Stated
from llmc.compiler.sources.quantised.torchao import TorchAo


class Reader(Protocol):
    """A method with its settings."""

    @property
    def title(self) -> str:
        """For people."""

    def read(self, module: Module) -> Reading | None:
        """The parameter that a module's tensors are; None where it is not quantised. Raises SourceError."""


def _auto_round(stated: Stated) -> Reader:
    """AutoRound packs as others do, and says as whom."""
    packing = str(stated.get("packing_format", default="auto_round"))
    others = stated.get("extra_config", default={})
    if any(isinstance(o, dict) and o.get("bits", 16) < 16 for o in others.values()):
        raise stated.refusal("modules with settings of their own (extra_config) are not supported")
    as_whom = replace(stated, settings={k: v for k, v in stated.settings.items() if k not in ("version", "format")})
    if packing in ("auto_round:auto_gptq", "auto_round:gptq"):
        return Gptq.of(as_whom)
    if packing in ("auto_round:auto_awq", "auto_round:awq"):
        return Awq.of(as_whom)
    raise stated.refusal(f"packing_format {packing} is not supported: expected auto_round:auto_gptq or :auto_awq")


READERS: Mapping[str, Callable[[Stated], Reader]] = {
    "auto-round": _auto_round,
    "awq": Awq.of,
    "bitsandbytes": BitsAndBytes.of,
    "compressed-tensors": CompressedTensors.of,
    "fbgemm_fp8": Fp8.fbgemm,
    "fp8": Fp8.finegrained,
    "gptq": Gptq.of,
    "hqq": Hqq.of,
    "modelopt": ModelOpt.of,
    "mxfp4": Mxfp4.of,
    "mxfp8": Fp8.finegrained,
    "torchao": TorchAo.of,
}

_VECTORS = "its codes stand for vectors"
_OWN = "its layout is not read"
REFUSED: Mapping[str, str] = {
    "aqlm": _VECTORS,
    "bitblas": _OWN,
    "bitnet": "weights of three values",
    "eetq": _OWN,
    "exl2": "bits differ from row to row",
    "exl3": _VECTORS,
    "fouroversix": _OWN,
    "fp_quant": "inputs are rotated by matrices of Hadamard",
    "gemma": _OWN,
    "higgs": _VECTORS,
    "marlin": _OWN,
    "metal": _OWN,
    "nvfp4": _OWN,
    "qqq": _OWN,
    "quanto": _OWN,
    "quark": _OWN,
    "quip": _VECTORS,
    "sinq": "weights have scales along both axes",
    "spqr": "outliers lie apart in a sparse matrix",
    "vptq": _VECTORS,
}


def reader_of(stated: Stated) -> Reader:
    """The reader of a method. SourceError, one line, for a method or settings that are not read."""
    if (make := READERS.get(stated.method)) is not None:
        return make(stated)
    why = REFUSED.get(stated.method, f"not among {', '.join(READERS)}")
    raise stated.refusal(f"a quantised checkpoint that is not supported ({why}); build from the unquantised weights")
