"""Checks of graphs: captured, made node by node, updated, and the rules of their edges (checks.py)."""

from __future__ import annotations

from typing import Any

import numpy as np
from cuda.bindings import driver as cu

from tests.cuda.driver.checks import ONES, R, kernel, raises, run, stream, value
from tests.cuda.driver.cuda_calls import Ptr, add_node, launch, ok, params, upload


def _capture(join: bool) -> Any:
    a, b, d = stream(), stream(), upload(np.zeros(64, np.float32))
    one, fork, joined = Ptr(upload(ONES)), ok(cu.cuEventCreate(0)), ok(cu.cuEventCreate(0))
    ok(cu.cuStreamBeginCapture(a, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    launch(kernel("add"), (1,), 64, 0, (Ptr(d), one, 1.0), a)
    ok(cu.cuEventRecord(fork, a))
    ok(cu.cuStreamWaitEvent(b, fork, 0))
    launch(kernel("add"), (1,), 64, 0, (Ptr(d), one, 10.0), b)
    if join:
        ok(cu.cuEventRecord(joined, b))
        ok(cu.cuStreamWaitEvent(a, joined, 0))
        launch(kernel("add"), (1,), 64, 0, (Ptr(d), one, 100.0), a)
    assert ok(cu.cuStreamIsCapturing(b)) == cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
    raises(R.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, lambda: ok(cu.cuStreamSynchronize(a)))
    return ok(cu.cuStreamEndCapture(a)), d


def capture_follows_events() -> None:
    graph, d = _capture(True)
    executable = ok(cu.cuGraphInstantiate(graph, 0))
    assert value(d) == 0, "captured work must not run"
    for n in (1, 2):
        ok(cu.cuGraphLaunch(executable, 0))
        assert value(d) == 111 * n
    raises(R.CUDA_ERROR_STREAM_CAPTURE_UNJOINED, _capture, False)


def graphs_by_node_are_updated_and_relaunched() -> None:
    d, other, one = (upload(x) for x in (np.zeros(64, np.float32), np.zeros(64, np.float32), ONES))
    graph = ok(cu.cuGraphCreate(0))
    first = add_node(graph, [], kernel("add"), (1,), 64, 0, (Ptr(d), Ptr(one), 1.0))
    memset = cu.CUDA_MEMSET_NODE_PARAMS()
    memset.dst, memset.value, memset.elementSize, memset.width, memset.height = d, 0, 4, 64, 1
    zero = ok(cu.cuGraphAddMemsetNode(graph, [first], 1, memset, 0))
    last = add_node(graph, [zero], kernel("add"), (1,), 64, 0, (Ptr(d), Ptr(one), 7.0))
    assert len(ok(cu.cuGraphGetNodes(graph, 8))[0]) >= 3
    executable = ok(cu.cuGraphInstantiate(graph, 0))
    ok(cu.cuGraphLaunch(executable, 0))
    assert value(d) == 7
    p = cu.CUDA_KERNEL_NODE_PARAMS()
    p.func, p.gridDimX, p.gridDimY, p.gridDimZ = kernel("add"), 1, 1, 1
    p.blockDimX, p.blockDimY, p.blockDimZ = 64, 1, 1
    p.kernelParams = params((Ptr(other), Ptr(one), 3.0))
    ok(cu.cuGraphLaunch(executable, 0))  # queued with the old parameters, run after the update
    ok(cu.cuGraphExecKernelNodeSetParams(executable, last, p))
    ok(cu.cuGraphLaunch(executable, 0))
    assert value(other) == 3 and value(d) == 0
    bigger = ok(cu.cuGraphCreate(0))
    add_node(bigger, [], kernel("add"), (1,), 64, 0, (Ptr(d), Ptr(one), 1.0))
    assert cu.cuGraphExecUpdate(executable, bigger)[0] == R.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
    cycle = ok(cu.cuGraphCreate(0))
    nodes = [ok(cu.cuGraphAddEmptyNode(cycle, [], 0)) for _ in range(2)]
    for a, b in ((0, 1), (1, 0)):
        ok(cu.cuGraphAddDependencies(cycle, [nodes[a]], [nodes[b]], None, 1))
    raises(R.CUDA_ERROR_INVALID_VALUE, lambda: ok(cu.cuGraphInstantiate(cycle, 0)))


def _edge(type_: int, from_port: int, to_port: int = 0) -> Any:
    edge = cu.CUgraphEdgeData()
    edge.type, edge.from_port, edge.to_port = type_, from_port, to_port
    return edge


def edges_have_rules() -> None:
    """cuGraphAddDependencies: nodes of this graph, once each, and what an edge's data may say."""
    graph, other = (ok(cu.cuGraphCreate(0)) for _ in range(2))

    def node(of: Any) -> Any:
        d = Ptr(upload(ONES))
        return add_node(of, [], kernel("add"), (1,), 64, 0, (d, d, 1.0))

    a, b, c, foreign = node(graph), node(graph), node(graph), node(other)
    empty = ok(cu.cuGraphAddEmptyNode(graph, [], 0))

    def link(before: Any, after: Any, *edges: Any) -> None:
        ok(cu.cuGraphAddDependencies(graph, [before], [after], list(edges) or None, 1))

    early = _edge(1, 1)
    for before, after, *edges in (
        (a, a),
        (a, foreign),
        (foreign, b),
        (a, empty, early),
        (empty, a, early),
        (a, b, _edge(1, 0)),
        (a, b, _edge(0, 1)),
        (a, b, _edge(1, 1, 1)),
        (a, b, _edge(1, 3)),
        (a, b, _edge(2, 1)),
    ):
        raises(R.CUDA_ERROR_INVALID_VALUE, link, before, after, *edges)
    link(a, b, early)
    raises(R.CUDA_ERROR_INVALID_VALUE, link, a, b)
    link(c, b)
    for twice in ([a, a], [foreign]):
        raises(R.CUDA_ERROR_INVALID_VALUE, lambda t=twice: ok(cu.cuGraphAddEmptyNode(graph, t, len(t))))
    executable = ok(cu.cuGraphInstantiate(graph, 0))
    ok(cu.cuGraphUpload(executable, 0))
    ok(cu.cuGraphDestroy(graph))
    for gone in (cu.cuGraphDestroy, lambda g: cu.cuGraphInstantiate(g, 0), lambda g: cu.cuGraphAddEmptyNode(g, [], 0)):
        raises(R.CUDA_ERROR_INVALID_VALUE, lambda f=gone: ok(f(graph)))
    ok(cu.cuGraphLaunch(executable, 0))  # lives without its graph
    ok(cu.cuStreamSynchronize(0))
    ok(cu.cuGraphExecDestroy(executable))
    for gone in (cu.cuGraphUpload, cu.cuGraphLaunch):
        raises(R.CUDA_ERROR_INVALID_HANDLE, lambda f=gone: ok(f(executable, 0)))


CHECKS = [
    capture_follows_events,
    graphs_by_node_are_updated_and_relaunched,
    edges_have_rules,
]

if __name__ == "__main__":
    run(CHECKS)
