"""Manifests of the format before today's: an engine outlives one change of it. The next change replaces this file."""

from collections.abc import Mapping
from typing import Any

from llmc.runtime.artifact.manifest import FORMAT

PREVIOUS = 3
_UNSAID: dict[str, Any] = dict.fromkeys(("presence_penalty", "frequency_penalty", "min_new_tokens")) | {
    "stop_strings": []
}


def as_today(plain: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest of format 3 as one of format 4: what its generation defaults could not say, they leave unsaid."""
    assert FORMAT == PREVIOUS + 1
    generation = plain.get("generation")
    said = {**_UNSAID, **generation} if isinstance(generation, Mapping) else generation
    return {**plain, "format": FORMAT, "generation": said}
