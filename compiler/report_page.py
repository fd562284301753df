"""report.html: the report of a build as one page, without scripts and without anything from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any

import jinja2

from llmc.compiler.roofline.text import microseconds, milliseconds, percent, short_place, size


def render_page(report: Mapping[str, Any]) -> str:
    """The page of a report as compiler/report.py builds it; the same report gives the same bytes."""
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "size": size,
        "us": microseconds,
        "ms": milliseconds,
        "percent": percent,
        "place": short_place,
    }
    template = environment.from_string(resources.files("llmc.templates.report").joinpath("report.html.j2").read_text())
    return template.render(report) + "\n"
