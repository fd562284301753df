"""Arguments of launches in the form cuda-python passes them: values, and ctypes that say their width."""

import ctypes
from typing import Any

from llmc.runtime.cuda.addresses import Addresses, find_buffer
from llmc.runtime.cuda.driver import call, driver
from llmc.runtime.cuda.plan import Argument, Box, Plan, Sizes, Variant
from llmc.runtime.errors import ManifestInvalid

_SCALARS = {"i32": ctypes.c_int, "i64": ctypes.c_longlong, "f32": ctypes.c_float}
_SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}
_ELEMENTS = {"bf16": "BFLOAT16", "f16": "FLOAT16", "f32": "FLOAT32", "i32": "INT32", "i8": "UINT8", "e4m3": "UINT8"}
KernelParams = tuple[tuple[Any, ...], tuple[Any, ...]]


class Arguments:
    """Arguments of one plan's launches. Tensor maps are made once each."""

    def __init__(self, plan: Plan, addresses: Addresses) -> None:
        self._plan = plan
        self._addresses = addresses
        self._maps: dict[tuple[int, Box], Any] = {}

    def of(self, variant: Variant, sizes: Sizes) -> KernelParams:
        """For a bucket of these sizes. Valid as long as this object lives."""
        pairs = [self._one(argument, sizes) for argument in variant.arguments]
        return tuple(value for value, _ in pairs), tuple(kind for _, kind in pairs)

    def check(self, sizes: Sizes) -> None:
        """Whether every name of the plan is known. Raises ManifestInvalid, CudaError."""
        for variant in self._plan.variants():
            self.of(variant, sizes)

    def _one(self, argument: Argument, sizes: Sizes) -> tuple[Any, Any]:
        if argument.kind == "extent":
            assert argument.extent is not None
            return argument.extent.at(sizes), ctypes.c_int
        if argument.kind in _SCALARS:
            assert argument.value is not None
            return (argument.value if argument.kind == "f32" else int(argument.value)), _SCALARS[argument.kind]
        address = self._addresses.of(self._plan, argument)
        if argument.box is None:
            return address, ctypes.c_void_p
        return self._tensor_map(argument, address, argument.box), None

    def _tensor_map(self, argument: Argument, address: int, box: Box) -> Any:
        key = address, box
        if key not in self._maps:
            rows = box.rows
            if rows is None:
                if argument.kind != "buffer":
                    raise ManifestInvalid(f"the {self._plan.entry} plan: {argument.kind} {argument.name!r} has no rows")
                rows = self._addresses.rows(find_buffer(self._plan, argument.name or ""))
            self._maps[key] = encode_tensor_map(address, box, rows)
        return self._maps[key]


def encode_tensor_map(address: int, box: Box, rows: int) -> Any:
    """A CUtensorMap over a row-major matrix of `rows` rows. Raises CudaError, ManifestInvalid."""
    cu = driver()
    if box.dtype not in _ELEMENTS or box.swizzle not in _SWIZZLES:
        raise ManifestInvalid(f"a tensor map of {box.dtype} with a swizzle of {box.swizzle} bytes is unknown")
    u64, u32 = cu.cuuint64_t, cu.cuuint32_t
    return call(
        cu.cuTensorMapEncodeTiled,
        cu.CUtensorMapDataType[f"CU_TENSOR_MAP_DATA_TYPE_{_ELEMENTS[box.dtype]}"],
        2,
        address,
        [u64(box.columns), u64(rows)],
        [u64(box.row_bytes)],
        [u32(box.box_columns), u32(box.box_rows)],
        [u32(1), u32(1)],
        cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        cu.CUtensorMapSwizzle[f"CU_TENSOR_MAP_SWIZZLE_{_SWIZZLES[box.swizzle]}"],
        cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
