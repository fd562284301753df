"""Scripts that measure. Each puts the checkout on the path, so that it runs from anywhere, installed or not."""

import importlib.util
import sys
from pathlib import Path

if importlib.util.find_spec("llmc") is None:  # a bare machine, where nothing was installed
    sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "_typing"))  # this checkout as the package llmc
