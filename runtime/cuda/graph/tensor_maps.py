"""Tensor maps, encoded by the driver into memory that is aligned as it asks.

cuda-python encodes into a Python object, which lies at a multiple of 16 bytes. cuda.h asks for 64
(cuTensorMapEncodeTiled), and declares the type itself with 128. So the driver's function is called directly.
"""

import ctypes

from llmc.runtime.cuda.driver.driver import call, checked, driver
from llmc.runtime.cuda.plan import Box
from llmc.runtime.errors import ManifestInvalid

BYTES, ALIGNMENT = 128, 128
_FUNCTION, _SINCE = "cuTensorMapEncodeTiled", 12000  # CUDA 12.0
_SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}
_ELEMENTS = {"bf16": "BFLOAT16", "f16": "FLOAT16", "f32": "FLOAT32", "i32": "INT32", "i8": "UINT8", "e4m3": "UINT8"}
_RANK = 2
_Dims, _Strides, _Extents = ctypes.c_uint64 * _RANK, ctypes.c_uint64 * (_RANK - 1), ctypes.c_uint32 * _RANK
_Encode = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,  # the tensor map
    ctypes.c_int,  # type of elements
    ctypes.c_uint32,  # rank
    ctypes.c_void_p,  # address
    _Dims,  # elements of a row, rows: the innermost dimension comes first
    _Strides,  # bytes from row to row
    _Extents,  # of a box
    _Extents,  # steps within a box
    ctypes.c_int,  # interleave
    ctypes.c_int,  # swizzle
    ctypes.c_int,  # promotion in L2
    ctypes.c_int,  # what lies outside
)


class TensorMap:
    """Room for one CUtensorMap, at an aligned address as long as this object lives. Kernels take it by value."""

    def __init__(self) -> None:
        self._memory = ctypes.create_string_buffer(BYTES + ALIGNMENT)
        start = ctypes.addressof(self._memory)
        self._address = start + -start % ALIGNMENT

    def getPtr(self) -> int:
        """Its address: what cuda-python asks an argument of a launch for."""
        return self._address


def encode_tensor_map(address: int, box: Box, rows: int) -> TensorMap:
    """Over a row-major matrix of `rows` rows. Raises CudaError, ManifestInvalid."""
    cu = driver()
    if box.dtype not in _ELEMENTS or box.swizzle not in _SWIZZLES:
        raise ManifestInvalid(f"a tensor map of {box.dtype} with a swizzle of {box.swizzle} bytes is unknown")
    entry, _ = call(cu.cuGetProcAddress, _FUNCTION.encode(), _SINCE, 0)
    made = TensorMap()
    code = _Encode(entry)(
        made.getPtr(),
        cu.CUtensorMapDataType[f"CU_TENSOR_MAP_DATA_TYPE_{_ELEMENTS[box.dtype]}"],
        _RANK,
        address,
        _Dims(box.columns, rows),
        _Strides(box.row_bytes),
        _Extents(box.box_columns, box.box_rows),
        _Extents(1, 1),
        cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        cu.CUtensorMapSwizzle[f"CU_TENSOR_MAP_SWIZZLE_{_SWIZZLES[box.swizzle]}"],
        cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    checked(_FUNCTION, cu.CUresult(code))
    return made
