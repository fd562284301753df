"""Mutants that survive because they change nothing that can be observed, each with the reason.

Key: file, the line's text, what the mutated operator or call became ("deleted" never occurs: calls become
"(void)0" or "0u"), and how many equal lines precede it.
"""

HARMLESS: dict[tuple[str, str, str, int], str] = {
    (
        "linear.cuh",
        "if (Epilogue::kWidth % kV == 0 || col + kV <= Epilogue::kWidth) {",
        "<",
        0,
    ): "the last whole vector is finished column by column",
    (
        "linear_mma.cuh",
        "static constexpr u32 kLastAt = kRingBytes > Shape::kTileBytes ? kRingBytes : Shape::kTileBytes;",
        ">=",
        0,
    ): "a maximum: both sides are equal where the comparison changes",
    (
        "linear_mma.cuh",
        "else cp_async16_head(to, from, !valid ? 0 : Shape::kK - k < 8 ? (Shape::kK - k) * 2 : 16);",
        "<=",
        0,
    ): "eight columns are 16 bytes either way",
    (
        "linear_mma.cuh",
        "for (int s = 0; s < STAGES - 1; s++) fetch_w(first + s);",
        "<=",
        0,
    ): "one stage is fetched twice: the same bytes to the same place, by the same threads",
    (
        "linear_mma.cuh",
        "for (int s = 0; s < STAGES - 1; s++) {",
        "<=",
        0,
    ): "one stage is fetched twice: the same bytes to the same place, by the same threads",
    (
        "linear_mma.cuh",
        "if (token0 >= count) {  // nothing to do: but no copy may land in shared memory that is another block's by then",
        ">",
        0,
    ): "a block without tokens stores nothing",
    (
        "linear_mma.cuh",
        "cp_async_commit();",
        "(void)0",
        0,
    ): "a thread that leaves completes its copies in the emulator, as hardware is believed to",
    (
        "linear_mma.cuh",
        "cp_async_wait<0>();",
        "(void)0",
        0,
    ): "a thread that leaves completes its copies in the emulator, as hardware is believed to",
    (
        "linear_wgmma.cuh",
        "consume(smem, acc, group, lane, begin, begin + Shape::kSliceSteps < steps ? begin + Shape::kSliceSteps : steps);",
        "<=",
        0,
    ): "a minimum: both sides are equal where the comparison changes",
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
}
