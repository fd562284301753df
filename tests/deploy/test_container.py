"""The container file: no docker runs in tests, so it is read. Its install steps are those of every wheel."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmc.serve.routes.table import ROUTES
from tests.deploy.commands import served

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "container"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def instructions() -> Iterator[tuple[str, str]]:
    text = (FOLDER / "Dockerfile").read_text()
    without_comments = re.sub(r"^#.*\n", "", text, flags=re.M).replace("\\\n", " ")
    for line in filter(None, map(str.strip, without_comments.splitlines())):
        name, _, rest = line.partition(" ")
        yield name, rest.strip()


def stages() -> list[dict[str, list[str]]]:
    found: list[dict[str, list[str]]] = [{}]
    for name, rest in instructions():
        if name == "FROM":
            found.append({})
        found[-1].setdefault(name, []).append(rest)
    return found[1:]


def test_it_runs_what_was_installed_and_nothing_to_install_with() -> None:
    build, final = stages()
    assert "RUN" in build and "RUN" not in final
    assert final["COPY"] == ["--from=build /opt/llmc /opt/llmc"]
    assert build["FROM"] == [f"{final['FROM'][0]} AS build"]  # the environment is of this interpreter


def test_it_runs_as_a_user_that_owns_nothing() -> None:
    (user,) = stages()[-1]["USER"]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)


def test_signals_reach_the_server_which_drains() -> None:
    final = stages()[-1]
    assert final["STOPSIGNAL"] == ["SIGTERM"]
    for form in (*final["ENTRYPOINT"], *final["CMD"]):
        assert all(isinstance(word, str) for word in json.loads(form))  # exec form: no shell takes the signal


def test_llmc_takes_its_command() -> None:
    final = stages()[-1]
    command: list[str] = json.loads(final["ENTRYPOINT"][0]) + json.loads(final["CMD"][0])
    options = served(command[1:])
    assert (command[0], options["host"], options["log_json"]) == ("llmc", "0.0.0.0", True)
    assert str(options["port"]) == final["EXPOSE"][0]
    assert [engine.partition("=")[2] for engine in options["engines"]] == final["VOLUME"]


def test_health_is_a_route_that_needs_no_key() -> None:
    (check,) = stages()[-1]["HEALTHCHECK"]
    *_, code = json.loads(check[check.index("CMD ") + 4 :])
    compile(code, "HEALTHCHECK", "exec")
    port, path = re.findall(r"http://127.0.0.1:(\d+)(/\w+)", code)[0]
    assert port == stages()[-1]["EXPOSE"][0]
    assert [route.open for route in ROUTES if (route.method, route.path) == ("GET", path)] == [True]


@pytest.mark.parametrize("extras", ["serve", "serve,cuda"])
def test_no_torch_comes_with_it(extras: str) -> None:
    """Neither with llmc nor with these extras."""
    assert set(extras.split(",")) <= set(PROJECT["project"]["optional-dependencies"])
    wanted = [*PROJECT["project"]["dependencies"]]
    for extra in extras.split(","):
        wanted += PROJECT["project"]["optional-dependencies"][extra]
    names = {re.split(r"[^\w-]", requirement)[0] for requirement in wanted}
    assert not names & {"torch", "transformers", "accelerate", "ziglang", "gguf"}
    assert f"EXTRAS={extras}" in (FOLDER / "Dockerfile").read_text()


def test_the_context_holds_what_the_wheel_is_made_of() -> None:
    """Every package's folder, and what pyproject names beside them."""
    lines = (FOLDER / "Dockerfile.dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in lines if line.startswith("!")}
    folders = {Path(folder).parts[0] for folder in PROJECT["tool"]["setuptools"]["package-dir"].values()}
    files = {PROJECT["project"]["readme"], *PROJECT["project"]["license-files"], "pyproject.toml"}
    assert "*" in lines and allowed == folders | files
    assert [name for name in allowed if not (ROOT / name).exists()] == []


def test_the_extras_asked_for_are_installed() -> None:
    build = stages()[0]
    assert build["ARG"] == ["EXTRAS=serve"]
    assert any("[${EXTRAS}]" in word for line in build["RUN"] for word in shlex.split(line))
