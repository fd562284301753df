"""Alerts and panels ask for metrics and labels that a server has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from llmc.serve.metrics import OUTCOMES, Metrics
from tests.serve.scripted import ScriptedEngine

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = DEPLOY / "grafana" / "llmc.json"
RULES = DEPLOY / "prometheus" / "alerts.yml"
SELECTOR = re.compile(r"\b((?:llmc|vllm):\w+|process_\w+|up)\b(?:\{([^}]*)\})?")
TARGET = {"job", "instance"}  # what a scrape adds to every sample


def exported() -> dict[str, set[str]]:
    """The labels of every sample on /metrics, by its name."""
    metrics = Metrics()
    metrics.serve({"m": ScriptedEngine("m")})
    metrics.of("m")
    metrics.refused(429)
    samples = [s for family in text_string_to_metric_families(metrics.text().decode()) for s in family.samples]
    labels: dict[str, set[str]] = {"up": set()}
    for sample in samples:
        labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


def unknown(expression: str) -> list[str]:
    """What of an expression no server has."""
    known, wrong = exported(), []
    for name, selected in SELECTOR.findall(expression):
        wrong += [name] if name not in known else []
        wrong += sorted(set(re.findall(r"(\w+)\s*[=!]", selected)) - known.get(name, set()) - TARGET)
    return wrong


def panels() -> list[dict[str, Any]]:
    found = json.loads(DASHBOARD.read_text())["panels"]
    assert len(found) > 10
    return list(found)


def alerts() -> list[dict[str, Any]]:
    yaml: Any = pytest.importorskip("yaml")
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def test_what_is_not_exported_is_found() -> None:
    assert unknown('rate(vllm:request_success{colour="red"}[5m])') == ["vllm:request_success", "colour"]


def test_panels_show_what_is_exported() -> None:
    for panel in panels():
        for target in panel["targets"]:
            assert SELECTOR.search(target["expr"]) and unknown(target["expr"]) == [], panel["title"]


def test_variables_ask_for_what_is_exported() -> None:
    queries = [
        v["query"]["query"] for v in json.loads(DASHBOARD.read_text())["templating"]["list"] if v["type"] == "query"
    ]
    assert queries and [wrong for query in queries for wrong in unknown(query)] == []


def test_panels_neither_overlap_nor_share_an_id() -> None:
    cells: list[tuple[int, int]] = []
    for at in (panel["gridPos"] for panel in panels()):
        cells += [(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in panels()}) == len(panels())


def test_alerts_ask_for_what_is_exported() -> None:
    assert len(alerts()) >= 5
    for alert in alerts():
        assert SELECTOR.search(alert["expr"]) and unknown(alert["expr"]) == [], alert["alert"]
        assert alert["annotations"]["summary"] and alert["labels"]["severity"] in ("page", "ticket")


def test_alerts_name_outcomes_that_there_are() -> None:
    named = re.findall(r'how="(\w+)"', RULES.read_text() + DASHBOARD.read_text().replace("\\", ""))
    assert named and set(named) <= set(OUTCOMES)


def test_promtool_takes_them() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not there (Debian: prometheus)")
    config = DEPLOY / "prometheus" / "prometheus.yml"
    done = subprocess.run([promtool, "check", "config", config], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
