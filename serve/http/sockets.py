"""Sockets to listen on."""

import contextlib
import errno
import socket
from pathlib import Path

_BACKLOG = 2048


def open_socket(host: str, port: int) -> socket.socket:
    """Listening already, or another server on this port would only be found out later.

    Raises OSError with the address in its filename.
    """
    where = f"{host}:{port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), where) from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        listening.close()
        raise OSError(getattr(error, "errno", None), getattr(error, "strerror", None) or str(error), where) from error
    return listening


def open_unix_socket(path: Path) -> socket.socket:
    """For this user alone. A socket of a server that is gone is replaced; raises OSError if one answers."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket():
            _check_deserted(path)
            path.unlink()
        listening.bind(str(path))
        path.chmod(0o600)
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    return listening


def remove_unix_socket(path: Path, identity: tuple[int, int]) -> None:
    """If it is still the one that was opened here; another server may have taken the name."""
    with contextlib.suppress(FileNotFoundError):
        if identity == identity_of(path):
            path.unlink()


def identity_of(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino


def url(listening: socket.socket) -> str:
    """Where clients reach it."""
    if listening.family == socket.AF_UNIX:
        return f"unix:{listening.getsockname()}"
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _check_deserted(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other, contextlib.suppress(ConnectionRefusedError):
        other.connect(str(path))
        raise OSError(errno.EADDRINUSE, "another server listens there")
