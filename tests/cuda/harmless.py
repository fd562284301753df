"""Mutants that survive because they change nothing that can be observed, each with the reason.

Key: file, the line's text, what the mutated operator or call became ("deleted" never occurs: calls become
"(void)0" or "0u"), and how many equal lines precede it.
"""

HARMLESS: dict[tuple[str, str, str, int], str] = {
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
        "attention_softmax.cuh",
        "const float top = split.top > row.top ? split.top : row.top, base = top == no_score() ? 0.0f : top;",
        ">=",
        0,
    ): "a maximum: both sides are equal where the comparison changes",
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
        "linear.cuh",
        "const int wide = left < 8 ? left : 8;",
        "<=",
        0,
    ): "a minimum: both sides are equal where the comparison changes",
    (
        "linear.cuh",
        "if (Epilogue::kWidth % kV == 0 || col + kV <= Epilogue::kWidth) {",
        "<",
        0,
    ): "the last whole vector is finished column by column",
    (
        "linear.cuh",
        "return kSplit && end < kSteps ? end : kSteps;",
        "<=",
        0,
    ): "a minimum: both sides are equal where the comparison changes",
    (
        "linear.cuh",
        "static constexpr bool kEarlyWeights = BT <= 64;",
        "<",
        0,
    ): "when weights are fetched changes no result",
    (
        "linear.cuh",
        "static constexpr bool kTotals = !PARALLEL && kSlices > 1; // this block adds slices up",
        ">=",
        0,
    ): "adds the only slice to zero",
    (
        "linear_mma.cuh",
        "const int slice_end = begin + Shape::kSliceSteps < end ? begin + Shape::kSliceSteps : end;",
        "<=",
        0,
    ): "a minimum: both sides are equal where the comparison changes",
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
        "static constexpr u32 kLastAt = kRingBytes > Shape::kTileBytes ? kRingBytes : Shape::kTileBytes;",
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
        "sample.cuh",
        "__syncthreads();",
        "(void)0",
        1,
    ): "keeps the largest of warps for whoever calls again; today a barrier of edit() lies between two calls",
    ("sample.cuh", "__syncthreads();", "(void)0", 4): "the best are read behind the barriers of exponentials()",
    (
        "sample.cuh",
        "const Tokens tokens = few <= LIST ? Tokens{nullptr, 0, few, 0.0f, 1.0f, 0} : all;",
        "<",
        0,
    ): "with the list exactly full the whole row is searched: the same tokens are found",
    (
        "sample.cuh",
        "const bool weighs = temperature > 0.0f, same = x == logits && temperature == 1.0f;",
        ">=",
        0,
    ): "greedy rows add up weights that nobody reads",
    (
        "sample.cuh",
        "float v = flushed(raw > 0.0f ? raw / row.repetition_penalty : raw * row.repetition_penalty);",
        ">=",
        0,
    ): "zero stays zero either way",
    (
        "sample.cuh",
        "for (int base = 0; base < kBlocks; base += THREADS / 4) {",
        "<=",
        0,
    ): "one more round, of blocks behind the last",
    (
        "sample.cuh",
        "for (int i = (row.prompt_len > 0 ? row.prompt_len : 0) + threadIdx.x; i < row.history_len; i += THREADS)",
        ">=",
        0,
    ): "a maximum: both sides are equal where the comparison changes",
    (
        "sample.cuh",
        "if (largest > e.largest || (largest == e.largest && id < e.id)) e.largest = largest, e.id = id;",
        "<=",
        0,
    ): "equal values and equal ids: the assignment changes nothing",
    (
        "sample.cuh",
        "if (o.largest > e.largest || (o.largest == e.largest && o.id < e.id)) e.largest = o.largest, e.id = o.id;",
        "<=",
        0,
    ): "equal values and equal ids: the assignment changes nothing",
    (
        "selection.cuh",
        "__syncthreads();",
        "(void)0",
        1,
    ): "keeps the sums of warps for whoever calls again; today a selection with its barriers lies between two calls",
    (
        "selection.cuh",
        "for (int base = tokens.first / 4 * 4; base < tokens.end; base += THREADS * 4) {",
        "<=",
        0,
    ): "one more round in which no token is live",
    (
        "selection.cuh",
        "for (int level = begin; level < end; level++) {",
        "<=",
        0,
    ): "one level more: its digit is 0 for every id, or an id's, of which find_best makes no use",
    (
        "selection.cuh",
        "static constexpr int id_levels() { return VALID <= 1 << 8 ? 1 : VALID <= 1 << 16 ? 2 : 3; }",
        "<",
        0,
    ): "one level more than needed, whose digit is the same for all ids",
}
