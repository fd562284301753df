"""Loads every cubin of FOLDER and asks for its kernels: the driver compares parameter sizes with the twin's.

load_all.py FOLDER: prints the number of kernels, or the first refusal.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cuda.bindings import driver as cu

from tests.cuda.driver.cuda_calls import CallFailed, context, ok


def main() -> None:
    context()
    found = 0
    try:
        for path in sorted(Path(sys.argv[1]).glob("*.cubin")):
            module = ok(cu.cuModuleLoadData(path.read_bytes()))
            ok(cu.cuModuleGetFunction(module, path.stem.encode()))
            found += 1
    except CallFailed as e:
        print(f"refused: {e}")
        return
    print(f"loaded {found}")


if __name__ == "__main__":
    main()
