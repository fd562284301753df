"""templates/cpu/abi.h, mirrored field by field for ctypes.

A test compares sizes and offsets with the C compiler's.
"""

import ctypes
import os
from ctypes import POINTER, c_float, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from typing import BinaryIO

from llmc.runtime.errors import AbiMismatch

MAX_LOGPROBS = 20


class LlmcSampling(ctypes.Structure):
    """How one row's next token is chosen."""

    _fields_ = (
        ("temperature", c_float),
        ("top_p", c_float),
        ("min_p", c_float),
        ("repetition_penalty", c_float),
        ("presence_penalty", c_float),
        ("frequency_penalty", c_float),
        ("top_k", c_int32),
        ("num_logprobs", c_int32),
        ("seed", c_uint64),
        ("sample_index", c_uint32),
        ("position", c_uint32),
        ("history", c_void_p),
        ("history_len", c_int32),
        ("prompt_len", c_int32),
        ("bias_ids", c_void_p),
        ("bias", c_void_p),
        ("num_bias", c_int32),
        ("padding", c_int32),
    )


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
        ("sampling", POINTER(LlmcSampling)),
        ("logits", c_void_p),
        ("out_tokens", c_void_p),
        ("out_logprob", c_void_p),
        ("out_top_ids", c_void_p),
        ("out_top_logprobs", c_void_p),
    )


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
