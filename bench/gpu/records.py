"""What a part of the report tells its parent, item by item: a part may die at any moment and loses one item at most.

A part is a process of its own (part.py), because an error of CUDA ends the context it happens in for good. On its
standard input it gets what it is asked; it answers with lines of JSON on a file descriptor of their own:

    {"plan": [key, ...]}        what it means to do, before anything is done
    {"begin": key}              so that whoever finds it dead knows what it died of
    {"end": key, "item": {}}    an item, as it stands in the report
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

Item = dict[str, Any]


@dataclass
class Records:
    """`options`: what this part is asked. `skip`: keys that an earlier process of the same part has been through.
    `until`: monotonic time (the whole machine's) after which nothing is begun."""

    part: str
    options: dict[str, Any]
    skip: frozenset[str]
    until: float
    descriptor: int
    _begun: str | None = field(default=None, init=False)

    @classmethod
    def of_parent(cls) -> Records:
        """As the parent asks on standard input."""
        asked = json.load(sys.stdin)
        return cls(asked["part"], asked["options"], frozenset(asked["skip"]), asked["until"], asked["descriptor"])

    def each(self, keys: Sequence[str]) -> Iterator[str]:
        """The keys that are still to be done, while there is time."""
        self._write({"plan": list(keys)})
        for key in keys:
            if key in self.skip:
                continue
            if time.monotonic() > self.until:
                return
            self.begin(key)
            yield key

    def begin(self, key: str) -> None:
        self._begun = key
        self._write({"begin": key})

    def end(self, **item: Any) -> None:
        """What was begun last is done."""
        assert self._begun is not None
        self._write({"end": self._begun, "item": item})
        self._begun = None

    def _write(self, line: dict[str, Any]) -> None:
        os.write(self.descriptor, (json.dumps(line) + "\n").encode())
