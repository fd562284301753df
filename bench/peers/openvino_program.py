"""OpenVINO GenAI, in its own environment: `openvino_program.py MODEL THREADS`. All settings are its defaults.

Prompts go through its pipeline for one request, decoding through the one that batches continuously: each is the faster
of the two at that. Logits are those of the same model and settings, through OpenVINO's runtime.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.peers.answering import Prompts, serve


class OpenVino:
    def __init__(self, model: str, threads: int) -> None:
        import openvino
        import openvino_genai

        self._openvino, self._genai, self._model = openvino, openvino_genai, model
        self._settings = {"INFERENCE_NUM_THREADS": threads}
        self._single = openvino_genai.LLMPipeline(model, "CPU", ATTENTION_BACKEND="SDPA", **self._settings)
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = 2  # GiB
        scheduler.max_num_seqs = 16
        scheduler.dynamic_split_fuse = True
        scheduler.max_num_batched_tokens = 512
        scheduler.enable_prefix_caching = False
        self._batched = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", self._settings)
        self._requests = 0
        self.version = f"openvino-genai {openvino_genai.__version__.split('-')[0]}"
        self.weight_bytes = os.path.getsize(os.path.join(model, "openvino_model.bin"))

    def _config(self, new_tokens: int) -> Any:
        config = self._genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = new_tokens, True, False
        return config

    def _tensor(self, prompts: Prompts) -> Any:
        return self._openvino.Tensor(np.array(prompts, dtype=np.int64))

    def prefill_seconds(self, prompts: Prompts) -> float:
        mask = self._openvino.Tensor(np.ones((len(prompts), len(prompts[0])), dtype=np.int64))
        begin = time.perf_counter()
        self._single.generate(self._genai.TokenizedInputs(self._tensor(prompts), mask), self._config(1))
        return time.perf_counter() - begin

    def decode_seconds(self, prompts: Prompts, new_tokens: int) -> float:
        """Steps in which every sequence decodes are timed: each asks for more than is timed, and is ended then."""
        handles = []
        for prompt in prompts:
            self._requests += 1
            handles.append(
                self._batched.add_request(self._requests, self._tensor([prompt]), self._config(2 * new_tokens))
            )
        got = [0] * len(handles)
        while min(got) == 0:
            self._step(handles, got)
        begin, first = time.perf_counter(), sum(got)
        while sum(got) - first < len(handles) * (new_tokens - 1):
            self._step(handles, got)
        seconds = time.perf_counter() - begin
        for handle in handles:
            handle.stop()
        while self._batched.has_non_finished_requests():
            self._batched.step()
        return seconds

    def _step(self, handles: list[Any], got: list[int]) -> None:
        self._batched.step()
        for number, handle in enumerate(handles):
            while handle.can_read():
                got[number] += sum(len(output.generated_ids) for output in handle.read().values())

    def logits(self, ids: list[int]) -> npt.NDArray[np.float32]:
        core = self._openvino.Core()
        request = core.compile_model(f"{self._model}/openvino_model.xml", "CPU", self._settings).create_infer_request()
        given = {
            "input_ids": np.array([ids], dtype=np.int64),
            "attention_mask": np.ones((1, len(ids)), dtype=np.int64),
            "position_ids": np.arange(len(ids), dtype=np.int64)[None],
            "beam_idx": np.zeros(1, dtype=np.int32),
        }
        known = {name for port in request.model_inputs for name in port.names}
        request.infer({name: value for name, value in given.items() if name in known})
        return np.array(request.get_tensor("logits").data[0], dtype=np.float32)


if __name__ == "__main__":
    serve(OpenVino)
