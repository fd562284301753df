"""What KServe's files ask of the container and of the server. Their form was checked against KServe's own models."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from llmc.serve.routes.table import ROUTES
from tests.deploy.commands import served

DEPLOY = Path(__file__).parents[2] / "deploy"


def document(name: str) -> dict[str, Any]:
    yaml: Any = pytest.importorskip("yaml")
    return dict(yaml.safe_load((DEPLOY / "kserve" / name).read_text()))


def container() -> dict[str, Any]:
    (found,) = document("runtime.yaml")["spec"]["containers"]
    return dict(found)


def test_llmc_takes_what_the_runtime_says_after_the_image() -> None:
    entry: list[str] = json.loads(
        re.findall(r"^ENTRYPOINT (.*)$", (DEPLOY / "container/Dockerfile").read_text(), re.M)[0]
    )
    options = served([*entry[1:], *(word.replace("{{.Name}}", "m") for word in container()["args"])])
    assert list(options["engines"]) == ["m=/mnt/models"] and options["restart"]
    assert [port["containerPort"] for port in container()["ports"]] == [options["port"]]


@pytest.mark.parametrize("probe", ["readinessProbe", "livenessProbe"])
def test_probes_ask_routes_that_need_no_key(probe: str) -> None:
    asked = container()[probe]["httpGet"]
    assert [route.open for route in ROUTES if (route.method, route.path) == ("GET", asked["path"])] == [True]
    assert asked["port"] == container()["ports"][0]["containerPort"]


def test_it_runs_as_the_user_of_the_image() -> None:
    context = container()["securityContext"]
    assert f"USER {context['runAsUser']}:" in (DEPLOY / "container/Dockerfile").read_text()
    assert context["runAsNonRoot"] and context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]


def test_the_service_names_the_runtime_and_a_format_that_it_runs() -> None:
    runtime, service = document("runtime.yaml"), document("inferenceservice.yaml")["spec"]["predictor"]["model"]
    assert service["runtime"] == runtime["metadata"]["name"]
    assert service["modelFormat"]["name"] in [known["name"] for known in runtime["spec"]["supportedModelFormats"]]
