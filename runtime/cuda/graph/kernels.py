"""Cubins of the engine -> functions of the device."""

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

from llmc.runtime.artifact.artifact import Artifact
from llmc.runtime.cuda.driver.driver import CudaError, call, driver
from llmc.runtime.cuda.plan import Plan
from llmc.runtime.errors import DeviceRefused


class LoadedKernels:
    """The loaded functions of some plans, by symbol. Raises EngineError subclasses."""

    def __init__(self, artifact: Artifact, plans: Iterable[Plan]) -> None:
        self._cu = driver()
        self._modules: list[Any] = []
        self._functions: dict[str, Any] = {}
        plans = tuple(plans)
        files: dict[str, list[str]] = {}
        for symbol, file in {k: f for plan in plans for k, f in plan.kernels.items()}.items():
            files.setdefault(file, []).append(symbol)
        shared = shared_bytes(plans)
        try:
            for file, symbols in files.items():
                self._load(artifact, file, symbols, shared)
        except BaseException:
            self.close()
            raise

    def __getitem__(self, symbol: str) -> Any:
        return self._functions[symbol]

    def close(self) -> None:
        """Unload all; nothing may run any more."""
        self._functions.clear()
        while self._modules:
            with contextlib.suppress(CudaError):
                call(self._cu.cuModuleUnload, self._modules.pop())

    def _load(self, artifact: Artifact, file: str, symbols: list[str], shared: Mapping[str, int]) -> None:
        path = artifact.path(file)
        attribute = self._cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        symbol = ""
        try:
            module = call(self._cu.cuModuleLoadData, artifact.read_bytes(file))
            self._modules.append(module)
            for symbol in symbols:
                function = call(self._cu.cuModuleGetFunction, module, symbol.encode())
                if shared.get(symbol):  # small sizes too: how much is free without asking depends on the kernel
                    call(self._cu.cuFuncSetAttribute, function, attribute, shared[symbol])
                self._functions[symbol] = function
        except CudaError as error:
            raise DeviceRefused(f"{path}: {symbol or 'the module'} cannot be loaded: {error}") from error


def shared_bytes(plans: Iterable[Plan]) -> dict[str, int]:
    """The most dynamic shared memory of a block of each kernel."""
    most: dict[str, int] = {}
    for plan in plans:
        for variant in plan.variants():
            most[variant.kernel] = max(most.get(variant.kernel, 0), variant.shared_bytes)
    return most
