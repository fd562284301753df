"""Which values of an FX graph share storage, and so which in-place writes are seen by whom."""

from __future__ import annotations

import operator

import torch
from torch import fx

# Ops that check or hint and compute nothing.
_EFFECT_FREE = ("_assert", "sym_constrain_range")

# Ops whose results may share their input's storage.
_VIEWS = (
    "alias",
    "chunk",
    "contiguous",
    "detach",
    "diagonal",
    "expand",
    "expand_as",
    "flatten",
    "movedim",
    "narrow",
    "permute",
    "reshape",
    "select",
    "slice",
    "split",
    "split_with_sizes",
    "squeeze",
    "t",
    "to",
    "transpose",
    "type_as",
    "unbind",
    "unflatten",
    "unsqueeze",
    "view",
)


def needed_nodes(graph: fx.Graph) -> set[fx.Node]:
    """Nodes that the outputs depend on, through values or through writes to their storage; every write to a buffer."""
    needed: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or node in needed or _writes_to(node, needed):
            needed.add(node)
            needed.update(node.all_input_nodes)
            needed.update(storage(n) for n in node.all_input_nodes)
    return {n for n in needed if not any(mark in str(n.target) for mark in _EFFECT_FREE)}


def _writes_to(node: fx.Node, needed: set[fx.Node]) -> bool:
    """Whether a node writes in place to the storage of a needed value or of a placeholder."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    if not str(node.target._overloadpacket).endswith("_"):
        return False
    target = node.args[0]
    return isinstance(target, fx.Node) and (storage(target) in needed or storage(target).op == "placeholder")


def storage(node: fx.Node) -> fx.Node:
    """The value whose storage a view looks at."""
    while _is_view(node) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def shares_storage(node: fx.Node) -> bool:
    """Whether a value is a view of another, or another a view of it."""
    return _is_view(node) or any(_is_view(user) for user in node.users)


def _is_view(node: fx.Node) -> bool:
    if node.op != "call_function":
        return False
    return node.target is operator.getitem or any(f"aten.{name}." in str(node.target) for name in _VIEWS)
