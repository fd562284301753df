"""Mutants that survive because they change nothing that can be observed, each with the reason.

Key: file, the line's text, what the mutated operator or call became ("deleted" never occurs: calls become
"(void)0" or "0u"), and how many equal lines precede it.
"""

HARMLESS: dict[tuple[str, str, str, int], str] = {
    (
        "linear_wgmma.cuh",
        "static constexpr u32 kBarriersAt = kRingBytes > Shape::kTileBytes ? kRingBytes : Shape::kTileBytes;",
        ">=",
        0,
    ): "a maximum: both sides are equal where the comparison changes",
    (
        "linear_wgmma.cuh",
        "const int early = !Shape::kEarlyWeights ? 0 : steps < STAGES ? steps : STAGES;",
        "<=",
        0,
    ): "a minimum: both sides are equal where the comparison changes",
    (
        "linear.cuh",
        "static constexpr bool kTotals = !PARALLEL && kSlices > 1; // this block adds slices up",
        ">=",
        0,
    ): "adds the only slice to zero",
    (
        "linear.cuh",
        "static constexpr bool kEarlyWeights = BT <= 64;",
        "<",
        0,
    ): "when weights are fetched changes no result",
    (
        "linear.cuh",
        "return kSplit && end < kSteps ? end : kSteps;",
        "<=",
        0,
    ): "a minimum: both sides are equal where the comparison changes",
    (
        "linear.cuh",
        "const int wide = left < 8 ? left : 8;",
        "<=",
        0,
    ): "a minimum: both sides are equal where the comparison changes",
}
