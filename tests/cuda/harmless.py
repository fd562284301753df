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
    (
        "attention_softmax.cuh",
        "return window > chunk ? window : chunk;",
        ">=",
        0,
    ): "a maximum: both sides are equal where the comparison changes",
    (
        "attention_softmax.cuh",
        "top[h] = s[n][h * 2 + e] > top[h] ? s[n][h * 2 + e] : top[h];",
        ">=",
        0,
    ): "a maximum: both sides are equal where the comparison changes",
    (
        "attention_softmax.cuh",
        "const float top = split.top > row.top ? split.top : row.top, base = top == no_score() ? 0.0f : top;",
        ">=",
        0,
    ): "a maximum: both sides are equal where the comparison changes",
    (
        "attention_prefill.cuh",
        "cp_async_commit();",
        "(void)0",
        0,
    ): "the queries land with the first keys, which are waited for",
    (
        "attention_prefill.cuh",
        "cp_async_wait<0>();",
        "(void)0",
        0,
    ): "waits for the queries of a tile without work, which nobody reads: no block ends with copies in flight",
    (
        "attention_layer.cuh",
        "if (start > last || start + kKvBlock <= first) continue;",
        "<",
        0,
    ): "a block of which no position is seen becomes zeros, without being read",
    (
        "attention_layer.cuh",
        "const bool valid = first <= position && position <= last && (OF % CHUNKS == 0 || chunk + chunks < num_chunks);",
        "<=",
        0,
    ): "one chunk of the row behind, in columns that are not stored",
    (
        "attention_prefill.cuh",
        "static constexpr bool kQueriesStay = kSteps <= 8 && kSplit / 2 + kSteps * 4 + kPartSteps * 8 <= 128;",
        "<",
        0,
    ): "where queries are kept changes no result",
    (
        "attention_prefill.cuh",
        "Stretch s{seq, start > begin ? start : begin, stop < end ? stop : end, 0, 0};",
        ">=",
        0,
    ): "a maximum: both sides are equal where the comparison changes",
    (
        "attention_prefill.cuh",
        "Stretch s{seq, start > begin ? start : begin, stop < end ? stop : end, 0, 0};",
        "<=",
        0,
    ): "a minimum: both sides are equal where the comparison changes",
    (
        "attention_prefill.cuh",
        "const int from = low > s.begin ? low : s.begin, to = high < s.end ? high : s.end - 1;",
        ">=",
        0,
    ): "a maximum: both sides are equal where the comparison changes",
}
