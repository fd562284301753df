"""Norms out of the arithmetic that HF's modules spell them with. Runs on token graphs."""

from __future__ import annotations

from dataclasses import dataclass

from llmc.ir.graph import Builder, Graph, Value
from llmc.ir.ops.nn import LayerNorm, RmsNorm
from llmc.ir.ops.pointwise import UnaryFn
from llmc.ir.ops.reduce import Reduce
from llmc.passes.pattern import Match, Number, Var, add, div, mean_last, mul, op, sub, unary
from llmc.passes.rewrite import Refused, RuleLog, apply_rules, rule

X, Y, W = Var("x"), Var("y"), Var("w")
EPS = Number("eps")


def _over_last(m: Match, x: Value, *means: str) -> Refused | None:
    axes = {m.op(name, Reduce).axis for name in means}
    return None if axes == {x.tensor.rank - 1} else Refused(f"the mean is over axes {sorted(axes)}, not the last")


@rule(
    "x * rsqrt(mean(x * x) + eps) => rms_norm(x)",
    mul(X, unary(UnaryFn.RSQRT, add(mean_last(mul(X, X)), EPS))),
    div(X, unary(UnaryFn.SQRT, add(mean_last(mul(X, X)), EPS))),
)
def rms_norm(m: Match, b: Builder) -> Value | Refused:
    x = m.values["x"]
    return _over_last(m, x, "mean") or b.add(RmsNorm(m.numbers["eps"]), x)


_CENTRED = sub(X, mean_last(X, "mean"), "centred")


@rule(
    "(x - mean(x)) * rsqrt(mean((x - mean(x))^2) + eps) => layer_norm(x)",
    mul(_CENTRED, unary(UnaryFn.RSQRT, add(mean_last(mul(_CENTRED, _CENTRED, "square"), "variance"), EPS))),
)
def layer_norm(m: Match, b: Builder) -> Value | Refused:
    x = m.values["x"]
    op_ = LayerNorm(m.numbers["eps"], has_weight=False, has_bias=False)
    return _over_last(m, x, "mean", "variance") or b.add(op_, x)


@rule("rms_norm(x) * w => rms_norm(x, w)", mul(op(RmsNorm, X, name="norm"), W))
def scaled_rms_norm(m: Match, b: Builder) -> Value | Refused | None:
    x, w = m.values["x"], m.values["w"]
    return _not_a_row(x, w) or b.add(m.nodes["norm"].op, x, w)


@rule("layer_norm(x) * w => layer_norm(x, w)", mul(op(LayerNorm, X, name="norm"), W))
def scaled_layer_norm(m: Match, b: Builder) -> Value | Refused | None:
    x, w = m.values["x"], m.values["w"]
    eps = m.op("norm", LayerNorm).eps
    return _not_a_row(x, w) or b.add(LayerNorm(eps, has_weight=True, has_bias=False), x, w)


@rule("layer_norm(x, w) + b => layer_norm(x, w, b)", add(op(LayerNorm, X, Y, name="norm"), W))
def shifted_layer_norm(m: Match, b: Builder) -> Value | Refused | None:
    x, w, bias = m.values["x"], m.values["y"], m.values["w"]
    norm = m.op("norm", LayerNorm)
    if not norm.has_weight:
        return None
    return _not_a_row(x, bias) or b.add(LayerNorm(norm.eps), x, w, bias)


def _not_a_row(x: Value, w: Value) -> Refused | None:
    if w.tensor.shape != x.tensor.shape[-1:]:
        return Refused(f"the factor is {w.type}, a norm's weight would be [{x.tensor.shape[-1]}]")
    return None


# layer_norm before rms_norm, which would take it for an rms_norm of x - mean(x)
RULES = [*layer_norm, *rms_norm, *scaled_rms_norm, *scaled_layer_norm, *shifted_layer_norm]


@dataclass(frozen=True)
class RaiseNorms:
    """RmsNorm and LayerNorm nodes from means, squares and roots."""

    def run(self, graph: Graph, log: RuleLog) -> Graph:
        return apply_rules(graph, RULES, log)
