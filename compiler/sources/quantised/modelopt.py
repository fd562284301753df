"""NVIDIA's ModelOpt: fp8 with a scale for the tensor, and NVFP4. It keeps factors: a weight is code * scale."""

from __future__ import annotations

from dataclasses import dataclass

from llmc.compiler.sources.checkpoint import StoredDtype
from llmc.compiler.sources.quantised.fp4 import read_nvfp4
from llmc.compiler.sources.quantised.fp8 import read_fp8
from llmc.compiler.sources.quantised.module import Module, Reading
from llmc.compiler.sources.quantised.stated import Stated

_ALGORITHMS = ("FP8", "NVFP4")


@dataclass(frozen=True)
class ModelOpt:
    title = "ModelOpt"

    @staticmethod
    def of(stated: Stated) -> ModelOpt:
        """SourceError for algorithms that are not read."""
        if (algorithm := stated.get("quant_algo")) not in _ALGORITHMS:
            raise stated.refusal(f"quant_algo {algorithm} is not supported: expected {' or '.join(_ALGORITHMS)}")
        return ModelOpt()

    def read(self, module: Module) -> Reading | None:
        if "weight_scale_2" in module:
            return read_nvfp4(module, "weight", "weight_scale", "weight_scale_2")
        weight = module.tensors.get("weight")
        if weight is None or weight.dtype is not StoredDtype.F8_E4M3:
            return None
        return read_fp8(module, "weight_scale", None)
