"""A certificate for people: what an engine costs in accuracy, where it was lost, what was not measured."""

from __future__ import annotations

from rich.table import Table

from llmc.compiler.verify.certificate import Certificate

_MOST_LAYERS = 5


def certificate_lines(certificate: Certificate | None) -> list[str]:
    """Without the layers."""
    if certificate is None:
        return ["none: not measured when it was built"]
    figures = certificate.figures
    if figures is None:
        return list(certificate.remarks)
    return [
        f"KL from {certificate.source} {figures.kl_mean:.4g} in the mean, {figures.kl_p99:.4g} at p99, "
        f"{figures.kl_max:.4g} at {figures.worst}",
        f"top-1 the same at {figures.top1_agreement:.2%}; perplexity {figures.perplexity:.5g}, the source's "
        f"{figures.source_perplexity:.5g}",
        f"over {certificate.tokens} tokens of held-out text, on {certificate.measured_on}",
        *certificate.remarks,
    ]


def layers_table(certificate: Certificate) -> Table:
    """The linears whose outputs are furthest from the source's."""
    worst = sorted(certificate.layers, key=lambda layer: -(layer.output_error or layer.weight_error))
    table = Table("linear", "format", title="furthest from the source", title_justify="left")
    for column in ("weight error", "output error"):
        table.add_column(column, justify="right")
    for layer in worst[:_MOST_LAYERS]:
        output = "" if layer.output_error is None else f"{layer.output_error:.2%}"
        table.add_row(layer.module, layer.scheme, f"{layer.weight_error:.2%}", output)
    return table
