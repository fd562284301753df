"""A CUDA driver, as cuda-python shows it, that does not know programmatic edges of graphs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cuda.bindings import driver as cu

NOT_SUPPORTED = cu.CUresult.CUDA_ERROR_NOT_SUPPORTED


@contextmanager
def refusing(function: str, edges: list[int]) -> Iterator[None]:
    """A driver that takes no programmatic edge: not when it is added, or only once the graph is made of them. `edges`
    gets one entry for each that is asked for."""
    add, instantiate = cu.cuGraphAddDependencies, cu.cuGraphInstantiate

    def add_edges(*arguments: Any) -> Any:
        edges.append(len(edges))
        graphs.append(int(arguments[0]))
        return (NOT_SUPPORTED,) if function == "cuGraphAddDependencies" else add(*arguments)

    def instantiate_graph(graph: Any, flags: int) -> Any:
        return (NOT_SUPPORTED, None) if int(graph) in graphs else instantiate(graph, flags)

    graphs: list[int] = []
    add_edges.__name__, instantiate_graph.__name__ = "cuGraphAddDependencies", "cuGraphInstantiate"
    cu.cuGraphAddDependencies = add_edges
    if function == "cuGraphInstantiate":
        cu.cuGraphInstantiate = instantiate_graph
    try:
        yield
    finally:
        cu.cuGraphAddDependencies, cu.cuGraphInstantiate = add, instantiate
