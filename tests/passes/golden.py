"""Text in, text out: a pass is run on the graph that a text prints, and compared with the text it should give."""

from __future__ import annotations

from textwrap import dedent, indent

from llmc.ir.graph import Graph, bodies
from llmc.ir.parser import parse
from llmc.ir.printer import print_graph
from llmc.ir.verify import verify
from llmc.passes.pipeline import Pass
from llmc.passes.rewrite import RuleLog


def graph(text: str) -> Graph:
    """The valid graph whose lines (inputs, nodes, outputs) are `text`; T, R, B and S are dims."""
    lines = indent(dedent(text).strip(), "  ")
    parsed = parse(f"graph main {{\n  dims B in [1, inf], R in [1, inf], S in [1, inf], T in [1, inf]\n{lines}\n}}\n")
    verify(parsed)
    return parsed


def golden(step: Pass, before: str, after: str) -> RuleLog:
    """Run a pass on one text and expect another, whatever the values are called. Returns what the rules did."""
    log = RuleLog()
    changed = step.run(graph(before), log)
    verify(changed)
    assert shown(changed) == shown(graph(after))
    return log


def unchanged(step: Pass, text: str) -> RuleLog:
    """A near miss: the pass leaves the graph as it is and counts no rule."""
    log = golden(step, text, text)
    assert not log.applied
    return log


def applied(step: Pass, text: str) -> RuleLog:
    """What the rules did to a graph, when its new text is of no interest."""
    log = RuleLog()
    verify(step.run(graph(text), log))
    return log


def reasons(log: RuleLog, rule: str) -> list[str]:
    """Why a rule was refused, at each place."""
    return list(log.refused.get(rule, {}).values())


def shown(graph: Graph) -> str:
    """The graph's text with all values but the inputs numbered in order."""
    _number(graph, "v")
    return print_graph(graph).split("\n", 1)[1]


def _number(graph: Graph, stem: str) -> None:
    for i, node in enumerate(graph.nodes):
        for value in node.outputs:
            value.name = f"{stem}{i}"
        for body in bodies(node.op):
            for j, value in enumerate(body.inputs):
                value.name = f"in{j}"
            _number(body, "w")
