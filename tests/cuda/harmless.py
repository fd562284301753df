"""Mutants that survive because they change nothing that can be observed, each with the reason.

Key: file, the line's text, what the mutated operator or call became ("deleted" never occurs: calls become
"(void)0" or "0u"), and how many equal lines precede it.
"""

HARMLESS: dict[tuple[str, str, str, int], str] = {
    (
        "gemm.cuh",
        "if (step < steps) {",
        "<=",
        0,
    ): "fetches one step behind K: every chunk is invalid and becomes zero in a stage nobody reads",
    (
        "skinny_gemm.cuh",
        "const int k_end = k_begin + slice < K ? k_begin + slice : K;",
        "<=",
        0,
    ): "a minimum: both sides are equal where the comparison changes",
    ("skinny_gemm.cuh", "for (int m = 0; m < MAX_M; m++) {", "<=", 0): "`m < M` inside skips it: M <= MAX_M",
    (
        "skinny_gemm.cuh",
        "for (int i = threadIdx.x; i < M * kPairs; i += kThreads) {",
        "<=",
        0,
    ): "the extra pair is of row M, which store_pair drops",
    (
        "epilogue.cuh",
        "for (int n = 0; n + 1 < TILES; n += 2) {",
        "<=",
        0,
    ): "TILES is even: no n makes the difference",
    (
        "attention_decode.cuh",
        "const int begin = split * SPLIT, context = len[b], end = begin + SPLIT < context ? begin + SPLIT : context;",
        "<=",
        0,
    ): "a minimum: both sides are equal where the comparison changes",
    (
        "attention_decode.cuh",
        "if (begin >= end) return;",
        ">",
        0,
    ): "an empty split writes a neutral state that combine does not read",
    (
        "attention_decode.cuh",
        "for (int base = begin; base < end; base += kStates) {",
        "<=",
        0,
    ): "one more round in which no token is valid",
    ("attention_prefill.cuh", "if (q0 >= rows) return;", ">", 0): "a block without rows stores nothing",
    (
        "attention_prefill.cuh",
        "const int last = shift + (q0 + kBQ < rows ? q0 + kBQ : rows), tiles = (last + kBKV - 1) / kBKV;",
        "<=",
        0,
    ): "a minimum: both sides are equal where the comparison changes",
    (
        "attention_prefill.cuh",
        "if (tile < tiles) {",
        "<=",
        0,
    ): "fetches one tile more into the stage that nobody reads any more",
    (
        "attention_prefill.cuh",
        "const int limit = row + h * 8 < context ? row + h * 8 : context - 1;",
        "<=",
        0,
    ): "differs for query rows behind the last one, which are not stored",
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
        "sample.cuh",
        "__syncthreads();",
        "(void)0",
        1,
    ): "keeps the largest of warps for whoever calls again; today a barrier of edit() lies between two calls",
    (
        "sample.cuh",
        "__syncthreads();",
        "(void)0",
        4,
    ): "the best are read behind the barriers of exponentials()",
    (
        "sample.cuh",
        "const Tokens tokens = few <= LIST ? Tokens{nullptr, 0, few, 0.0f, 1.0f, 0} : all;",
        "<",
        0,
    ): "with the list exactly full the whole row is searched: the same tokens are found",
    (
        "sample.cuh",
        "for (int i = (row.prompt_len > 0 ? row.prompt_len : 0) + threadIdx.x; i < row.history_len; i += THREADS)",
        ">=",
        0,
    ): "a maximum: both sides are equal where the comparison changes",
    (
        "selection.cuh",
        "for (int base = tokens.first / 4 * 4; base < tokens.end; base += THREADS * 4) {",
        "<=",
        0,
    ): "one more round in which no token is live",
    (
        "selection.cuh",
        "__syncthreads();",
        "(void)0",
        1,
    ): "keeps the sums of warps for whoever calls again; today a selection with its barriers lies between two calls",
    (
        "selection.cuh",
        "static constexpr int id_levels() { return VALID <= 1 << 8 ? 1 : VALID <= 1 << 16 ? 2 : 3; }",
        "<",
        0,
    ): "one level more than needed, whose digit is the same for all ids",
    (
        "selection.cuh",
        "for (int level = begin; level < end; level++) {",
        "<=",
        0,
    ): "one level more: its digit is 0 for every id, or an id's, of which find_best makes no use",
    (
        "sample.cuh",
        "float v = flushed(raw > 0.0f ? raw / row.repetition_penalty : raw * row.repetition_penalty);",
        ">=",
        0,
    ): "zero stays zero either way",
    (
        "sample.cuh",
        "const bool weighs = temperature > 0.0f, same = x == logits && temperature == 1.0f;",
        ">=",
        0,
    ): "greedy rows add up weights that nobody reads",
    (
        "sample.cuh",
        "for (int base = 0; base < kBlocks; base += THREADS / 4) {",
        "<=",
        0,
    ): "one more round, of blocks behind the last",
    (
        "sample.cuh",
        "if (w >= kLikely) Select::append(s.select, u[i / 4].x[i % 4], w, id);",
        ">",
        0,
    ): "matters only to a min_p of exactly 1e-6 and a weight of exactly that",
    (
        "sample.cuh",
        "for (int i = 0; i < kBlocks; i += 8) {",
        "<=",
        0,
    ): "eight zeros more",
    (
        "sample.cuh",
        "const bool by_rank = row.top_k > 0 && row.top_k < VALID, by_sum = row.top_p < 1.0f;",
        "<=",
        0,
    ): "a top_k of all ids keeps all, a top_p of 1 too",
    (
        "sample.cuh",
        "if (listed <= LIST && (by_rank || by_sum || row.min_p >= kLikely)) {  // do the filters leave likely tokens alone?",
        "<",
        0,
    ): "which tokens are looked at changes where both choices give the same answer",
    (
        "sample.cuh",
        "if (listed <= LIST && (by_rank || by_sum || row.min_p >= kLikely)) {  // do the filters leave likely tokens alone?",
        ">",
        0,
    ): "which tokens are looked at changes where both choices give the same answer",
    (
        "sample.cuh",
        "const bool within = by_rank ? row.top_k <= likely.end",
        "<",
        0,
    ): "which tokens are looked at changes where both choices give the same answer",
    (
        "sample.cuh",
        ": row.min_p >= kLikely || Select::kept_weight(s.select, likely, kept) >= whole;",
        ">",
        0,
    ): "which tokens are looked at changes where both choices give the same answer",
}
