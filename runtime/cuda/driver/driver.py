"""Calls of the CUDA driver through cuda-python, with CUDA's own words when one fails."""

import importlib.metadata
import re
from typing import Any

INSTALL = "pip install 'llmc[cuda]'"


class CudaError(Exception):
    """A driver call failed. `code` is CUDA's name for it (CUDA_ERROR_OUT_OF_MEMORY)."""

    def __init__(self, function: str, code: str, words: str) -> None:
        super().__init__(f"{function}: {code}: {words}")
        self.function = function
        self.code = code
        self.words = words


def driver() -> Any:
    """The module cuda.bindings.driver; imported here and nowhere else. Raises ImportError where it is not installed."""
    from cuda.bindings import driver as module  # type: ignore[import-untyped]

    return module


def call(function: Any, *arguments: Any) -> Any:
    """Call a function of the driver. Returns its result (a tuple if it has several, None if none); raises CudaError."""
    try:
        code, *results = function(*arguments)
    except (KeyError, ValueError) as error:  # what cuda-python makes of a code that its own CUDA does not have
        raise CudaError(function.__name__, *_unknown(error)) from error
    checked(function.__name__, code)
    return None if not results else results[0] if len(results) == 1 else tuple(results)


def checked(function: str, code: Any) -> None:
    """What a function returned, a CUresult. Raises CudaError."""
    if code:
        raise CudaError(function, code.name, _words(code))


def text_of(buffer: bytes) -> str:
    """What a function wrote into a buffer that cuda-python returns whole: up to the first NUL."""
    return buffer.partition(b"\0")[0].decode(errors="replace")


def _unknown(error: KeyError | ValueError) -> tuple[str, str]:
    """Code and words for a code without a name. Anything else that a function raises goes on as it is."""
    found = re.fullmatch(r"(\d+)(?: is not a valid CUresult)?", str(error))
    if found is None:
        raise error
    version = importlib.metadata.version("cuda-bindings")
    return f"CUDA_ERROR {found[1]}", f"this cuda-bindings ({version}) does not know the code; a newer one may name it"


def _words(code: Any) -> str:
    failed, text = driver().cuGetErrorString(code)
    words = "unknown error" if failed or text is None else text.decode(errors="replace")
    return " ".join(words.split())
