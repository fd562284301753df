"""A unix socket is removed by the server that made it, and by nobody else."""

from __future__ import annotations

from pathlib import Path

from llmc.serve.http.sockets import identity_of, open_unix_socket, remove_unix_socket


def test_only_its_own_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with open_unix_socket(path):
        own = identity_of(path)
        path.rename(tmp_path / "moved")
        path.write_text("somebody's file")
        remove_unix_socket(path, own)
        assert path.read_text() == "somebody's file"
        path.unlink()
        remove_unix_socket(path, own)  # there is nothing
        (tmp_path / "moved").rename(path)
        remove_unix_socket(path, own)
        assert not path.exists()
