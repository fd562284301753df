"""python measured_build.py MODEL OUT DTYPE: build, then print bytes of anonymous memory as JSON:
{"imports": .., "peak": ..}. DTYPE stored: weights stay as they are stored.

Samples RssAnon of this process: what it allocated itself. Pages of mapped files, the checkpoint's among them, are the
page cache's, which the kernel takes back when it needs them.
"""

import json
import sys
import threading
from pathlib import Path

from llmc.compiler.build import BuildOptions, Progress, build
from llmc.ir.formats import Scheme

INTERVAL_S = 0.005


def anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("no RssAnon in /proc/self/status")


def main(model: str, out: str, scheme: str) -> None:
    before = anonymous_bytes()
    samples = [before]
    done = threading.Event()

    def sample() -> None:
        while not done.wait(INTERVAL_S):
            samples.append(anonymous_bytes())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        as_stored = scheme == "stored"
        named = Scheme.BF16 if as_stored else Scheme.named(scheme)
        manifest = build(BuildOptions(model, Path(out), scheme=named, as_stored=as_stored), Progress())
    finally:
        done.set()
        thread.join()
    figures = {"imports": before, "peak": max(samples), "weights": manifest.targets[0].memory.weights_bytes}
    print(json.dumps({**figures, "samples": len(samples)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
