"""What `llmc serve` is told."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llmc.runtime.errors import InvalidParameter
from llmc.runtime.step.limits import LoadOptions

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#@]+")  # as browsers send it: no path, not even a slash


@dataclass(frozen=True)
class ServeOptions:
    """`engines` are folders, or NAME=FOLDER. Listens on `uds` where it is given, else on host and port."""

    engines: Sequence[str]
    host: str = "127.0.0.1"
    port: int = 8000
    uds: Path | None = None
    keys: Sequence[str] = ()
    key_file: Path | None = None
    origins: Sequence[str] = ()
    log_json: bool = False
    restart: bool = False
    otel: bool = False
    reasoning_in_content: bool = False
    device: str | None = None
    load: LoadOptions = field(default_factory=LoadOptions)

    def __post_init__(self) -> None:
        for origin in self.origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise InvalidParameter(f"--cors {origin}: an origin is https://host or http://host:port, or * for all")

    def named(self) -> dict[str, Path]:
        """Engine folders by the names that clients ask for. Raises InvalidParameter."""
        found: dict[str, Path] = {}
        for given in self.engines:
            name, equals, folder = given.partition("=")
            path = Path(folder if equals else given).expanduser()
            name = name if equals else path.resolve().name.removesuffix(".engine")
            if not name:
                raise InvalidParameter(f"{given}: the engine has no name; name it: NAME=FOLDER")
            if name in found:
                raise InvalidParameter(f"{given}: two engines are called {name!r}; name them: NAME=FOLDER")
            found[name] = path
        return found
