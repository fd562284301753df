"""Arguments of launches in the form cuda-python passes them: values, and ctypes that say their width."""

import ctypes
from typing import Any

from llmc.runtime.cuda.graph.tensor_maps import TensorMap, encode_tensor_map
from llmc.runtime.cuda.memory.addresses import Addresses, find_buffer
from llmc.runtime.cuda.plan import Argument, Box, Plan, Sizes, Variant
from llmc.runtime.errors import ManifestInvalid

_SCALARS = {"i32": ctypes.c_int, "i64": ctypes.c_longlong, "f32": ctypes.c_float}
KernelParams = tuple[tuple[Any, ...], tuple[Any, ...]]


class Arguments:
    """Arguments of one plan's launches. Tensor maps are made once each."""

    def __init__(self, plan: Plan, addresses: Addresses) -> None:
        self._plan = plan
        self._addresses = addresses
        self._maps: dict[tuple[int, Box], TensorMap] = {}

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

    def _tensor_map(self, argument: Argument, address: int, box: Box) -> TensorMap:
        key = address, box
        if key not in self._maps:
            rows = box.rows
            if rows is None:
                if argument.kind != "buffer":
                    raise ManifestInvalid(f"the {self._plan.entry} plan: {argument.kind} {argument.name!r} has no rows")
                rows = self._addresses.rows(find_buffer(self._plan, argument.name or ""))
            self._maps[key] = encode_tensor_map(address, box, rows)
        return self._maps[key]
