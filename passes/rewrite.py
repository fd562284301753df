"""Rules and the driver that applies them: one forward sweep at a time until nothing matches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from llmc.ir.graph import Builder, Graph, IRError, Node, Value, eliminate_dead_code
from llmc.passes.pattern import Apply, Match, match

MAX_SWEEPS = 50


@dataclass(frozen=True)
class Refused:
    """Why a rule whose pattern matched was not applied."""

    reason: str


Replace = Callable[[Match, Builder], Value | Refused | None]


@dataclass(frozen=True)
class Rule:
    """`replace` builds the new value, or gives Refused for a near miss worth reporting, or None."""

    equation: str
    pattern: Apply
    replace: Replace

    @property
    def name(self) -> str:
        return self.replace.__name__.replace("_", "-")


def rule(equation: str, *patterns: Apply) -> Callable[[Replace], list[Rule]]:
    """Decorate a replace function into one rule per pattern that it serves."""
    return lambda replace: [Rule(equation, pattern, replace) for pattern in patterns]


@dataclass
class RuleLog:
    """What rules did: how often each was applied, and where and why each was refused."""

    applied: Counter[str] = field(default_factory=Counter)
    refused: dict[str, dict[str, str]] = field(default_factory=dict)

    def refuse(self, rule: str, loc: str, reason: str) -> None:
        self.refused.setdefault(rule, {})[loc] = reason


def apply_rules(graph: Graph, rules: list[Rule], log: RuleLog) -> Graph:
    """Rewrite until no rule matches. IRError when rules keep undoing each other."""
    for _ in range(MAX_SWEEPS):
        before = log.applied.total()
        graph = _sweep(graph, rules, log)
        if log.applied.total() == before:
            return graph
    names = ", ".join(sorted(log.applied))
    raise IRError(f"rules still match after {MAX_SWEEPS} sweeps; two of them undo each other: {names}")


def _sweep(graph: Graph, rules: list[Rule], log: RuleLog) -> Graph:
    by_kind: dict[type, list[Rule]] = {}
    for candidate in rules:
        by_kind.setdefault(candidate.pattern.kind, []).append(candidate)
    builder = Builder()
    producers: dict[Value, Node] = {}
    new_of: dict[Value, Value] = {}
    for old in graph.nodes:
        node = Node(old.op, tuple(new_of.get(v, v) for v in old.inputs), old.outputs, old.loc)
        builder.nodes.append(node)
        producers.update((v, node) for v in node.outputs)
        for candidate in by_kind.get(type(node.op), ()):
            value = _try(candidate, node, builder, producers, log)
            if value is not None:
                new_of[node.output] = value
                break
    outputs = tuple(new_of.get(v, v) for v in graph.outputs)
    return eliminate_dead_code(Graph(graph.name, graph.inputs, outputs, tuple(builder.nodes)))


def _try(candidate: Rule, node: Node, builder: Builder, producers: dict[Value, Node], log: RuleLog) -> Value | None:
    found = match(candidate.pattern, node, producers)
    if found is None:
        return None
    mark = len(builder.nodes)
    builder.loc = node.loc
    result = candidate.replace(found, builder)
    if not isinstance(result, Value):
        del builder.nodes[mark:]
        if result is not None:
            log.refuse(candidate.name, node.loc, result.reason)
        return None
    if result.type != node.output.type:
        raise IRError(f"rule {candidate.name} at {node.loc}: replaces {node.output.type} by {result.type}")
    if not result.name:
        result.name = node.output.name
    for new in builder.nodes[mark:]:
        producers.update((v, new) for v in new.outputs)
    log.applied[candidate.name] += 1
    return result
