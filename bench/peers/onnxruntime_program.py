"""ONNX Runtime GenAI, in its own environment: `onnxruntime_program.py MODEL THREADS`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.peers.answering import Prompts, serve

SHORTEST = 640  # of its KV buffer: at least Gemma 3's window of 512 tokens


class OnnxRuntime:
    def __init__(self, model: str, threads: int) -> None:
        import onnxruntime_genai

        self._genai = onnxruntime_genai
        config = onnxruntime_genai.Config(model)
        options = {"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}
        config.overlay(json.dumps(options))
        self._model = onnxruntime_genai.Model(config)
        self.version = f"onnxruntime-genai {onnxruntime_genai.__version__}"
        self.weight_bytes = matrix_bytes(Path(model) / "model.onnx")

    def _generator(self, sequences: int, length: int) -> Any:
        params = self._genai.GeneratorParams(self._model)
        length = max(length, SHORTEST)
        params.set_search_options(max_length=length, min_length=length, batch_size=sequences, do_sample=False)
        return self._genai.Generator(self._model, params)

    def prefill_seconds(self, prompts: Prompts) -> float:
        generator = self._generator(len(prompts), len(prompts[0]) + 1)
        begin = time.perf_counter()
        generator.append_tokens(np.array(prompts, dtype=np.int32))
        generator.generate_next_token()
        return time.perf_counter() - begin

    def decode_seconds(self, prompts: Prompts, new_tokens: int) -> float:
        generator = self._generator(len(prompts), len(prompts[0]) + new_tokens)
        generator.append_tokens(np.array(prompts, dtype=np.int32))
        generator.generate_next_token()
        begin = time.perf_counter()
        for _ in range(new_tokens - 1):
            generator.generate_next_token()
        return time.perf_counter() - begin

    def logits(self, ids: list[int]) -> npt.NDArray[np.float32]:
        """Token by token: what is raced gives those of the last position only."""
        generator = self._generator(1, len(ids) + 1)
        rows = []
        for token in ids:
            generator.append_tokens(np.array([[token]], dtype=np.int32))
            rows.append(np.array(generator.get_logits(), dtype=np.float32).reshape(-1))
        return np.stack(rows)


def matrix_bytes(path: Path) -> int:
    """Bytes of the stored tensors that something else than a look-up of rows reads."""
    import onnx

    graph = onnx.load(str(path), load_external_data=False).graph
    read = {name for node in graph.node if not node.op_type.startswith("Gather") for name in node.input}
    return sum(
        int(np.prod(tensor.dims)) * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
        for tensor in graph.initializer
        if tensor.name in read and len(tensor.dims) > 1
    )


if __name__ == "__main__":
    serve(OnnxRuntime)
