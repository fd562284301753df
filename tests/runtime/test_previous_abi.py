"""An engine of the step ABI before today's is read: it has threads of its own, and a smaller LlmcConfig."""

from __future__ import annotations

from pathlib import Path

from llmc.runtime import SamplingParams
from llmc.runtime.artifact.manifest import ABI, ABIS
from llmc.runtime.cpu.threads import SharedThreads
from llmc.runtime.loop.core import EngineCore
from llmc.runtime.step.limits import LoadOptions
from tests.runtime import reference_oracle as oracle
from tests.runtime.conftest import compile_reference
from tests.runtime.engine_folders import ABI_FOLDER, fill_engine

PARAMS = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)


def test_the_abi_without_pools(cxx: list[str], tmp_path: Path) -> None:
    assert ABIS == (ABI - 1, ABI) == (2, 3)
    lines = (ABI_FOLDER / "abi.h").read_text().replace(f"VERSION {ABI}", f"VERSION {ABI - 1}").splitlines()
    (tmp_path / "abi.h").write_text("\n".join(line for line in lines if "LlmcPool" not in line) + "\n")
    library = compile_reference(cxx, (None,), tmp_path, headers=tmp_path)
    folder = tmp_path / "engine"
    folder.mkdir()
    fill_engine(folder, library, abi=ABI - 1)
    with SharedThreads() as threads:
        core = EngineCore.load(folder, LoadOptions(), threads=threads)
        request = core.request([1, 2], PARAMS, 0)
        core.add(request)
        while core.step() is not None:
            pass
        core.close()
    expected, _ = oracle.generate([1, 2], PARAMS, 0, eos=(), max_len=256)
    assert request.tokens.ids.tolist() == [1, 2, *expected]
