"""templates/cpu/abi.h, mirrored field by field for ctypes; LlmcSampling is `step.row_sampling.SAMPLING_RECORD`.

A test compares sizes and offsets with the C compiler's.
"""

import ctypes
import os
from ctypes import POINTER, c_int32, c_int64, c_uint32, c_void_p
from typing import Any, BinaryIO

from llmc.runtime.errors import AbiMismatch
from llmc.runtime.step.arrays import StepBuffers


class LlmcStep(ctypes.Structure):
    """One step over T tokens of S sequences with R rows of logits."""

    _fields_ = (
        ("num_tokens", c_int32),
        ("num_seqs", c_int32),
        ("num_rows", c_int32),
        ("block_table_stride", c_int32),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("seq_starts", c_void_p),
        ("block_tables", c_void_p),
        ("rows", c_void_p),
        ("sampling", c_void_p),
        ("logits", c_void_p),
        ("out_tokens", c_void_p),
        ("out_logprob", c_void_p),
        ("out_top_ids", c_void_p),
        ("out_top_logprobs", c_void_p),
    )


_SHARED_POOLS = 3  # the first ABI whose engines run on a pool that they are given
_INPUTS = ("token_ids", "positions", "seq_starts", "block_tables", "rows")
_OUTPUTS = ("out_tokens", "out_logprob", "out_top_ids", "out_top_logprobs")


class CpuStep:
    """The LlmcStep of a step's arrays, which it points to: made once, with nothing copied."""

    def __init__(self, step: StepBuffers) -> None:
        self._struct = LlmcStep(block_table_stride=step.limits.blocks_per_seq)
        for name in (*_INPUTS, *_OUTPUTS):
            setattr(self._struct, name, getattr(step, name).ctypes.data)
        self._sampling = step.sampling.ctypes.data
        self._reference = ctypes.byref(self._struct)

    def of(self, step: StepBuffers) -> Any:
        """What llmc_prefill and llmc_decode take, for what the arrays hold now."""
        struct = self._struct
        struct.num_tokens, struct.num_seqs, struct.num_rows = step.num_tokens, step.num_seqs, step.num_rows
        struct.sampling = self._sampling if step.samples else None
        struct.logits = None if step.logits is None else step.logits.ctypes.data
        return self._reference


class LlmcKvPool(ctypes.Structure):
    """The KV blocks of one group."""

    _fields_ = (("base", c_void_p), ("num_blocks", c_int64))


class LlmcConfig(ctypes.Structure):
    """What the caller promises for the life of an engine."""

    _fields_ = (
        ("weights", c_void_p),
        ("kv", POINTER(LlmcKvPool)),
        ("max_tokens", c_int32),
        ("max_seqs", c_int32),
        ("max_rows", c_int32),
        ("max_seq_len", c_int32),
        ("num_threads", c_int32),
        ("padding", c_int32),
        ("pool", c_void_p),
    )


def load_library(file: BinaryIO) -> ctypes.CDLL:
    """An open model.so with its functions typed. Raises AbiMismatch if it cannot be loaded or lacks a function."""
    try:
        library = ctypes.CDLL(_name_of_its_own(file.fileno()))
        functions = {
            "llmc_abi_version": ((), c_uint32),
            "llmc_kv_groups": ((), c_int32),
            "llmc_kv_block_bytes": ((c_int32,), c_int64),
            "llmc_arena_bytes": ((POINTER(LlmcConfig),), c_int64),
            "llmc_create": ((POINTER(LlmcConfig),), c_void_p),
            "llmc_destroy": ((c_void_p,), None),
            "llmc_prefill": ((c_void_p, POINTER(LlmcStep)), c_int32),
            "llmc_decode": ((c_void_p, POINTER(LlmcStep)), c_int32),
        }
        if library.llmc_abi_version() >= _SHARED_POOLS:
            functions["llmc_pool_create"] = ((c_int32,), c_void_p)
            functions["llmc_pool_destroy"] = ((c_void_p,), None)
        for name, (arguments, result) in functions.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, result
    except (OSError, AttributeError) as error:
        raise AbiMismatch(f"{file.name}: cannot be loaded: {error}") from error
    return library


def _name_of_its_own(descriptor: int) -> str:
    """A name of an open file that no other file has had in this process.

    A path would not do: the loader expands a `$` in it, and takes a name it has loaded before for the same library,
    although a build may have put another one there. A descriptor's name is free of both but for being used again; the
    inode, which stays taken while it is mapped, makes the difference: its bits are spelled as `/` and `/.`.
    """
    inode = os.fstat(descriptor).st_ino
    bits = "".join("/." if inode >> bit & 1 else "/" for bit in range(inode.bit_length()))
    return f"/proc/self/fd{bits}/{descriptor}"
