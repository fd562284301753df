"""Mutants that survive because they change nothing that can be observed, each with the reason.

Key: the file, how many equal lines lie in front of the line, and the line with «» around what is shifted by one, or
deleted if it is a call. mutate.py fails if an entry is no mutant any more, or is caught after all.
"""

_ALL = "the whole row gives the right answer too: a list that would do is only not made use of"
_TWICE = "one stage is fetched twice before anyone reads it: the same bytes to the same place, by the same threads"

_TIES = "two scores of 52 random bits and more are equal in none of the rows, but for a token and itself"
_BOUND = "the bound lies 1e-3 below what would be equal"

HARMLESS: dict[tuple[str, int, str], str] = {
    (
        "attention_layer.cuh",
        0,
        "if (start > last || start + kKvBlock «<=» first) continue;",
    ): "a block of which no position is seen becomes zeros, without being read, and its scores are passed over",
    (
        "attention_softmax.cuh",
        0,
        "LLMC_DEVICE bool sees_all(int first, int last, int start, int stop) { return first «<=» start && stop <= last; }",
    ): "false where it could be true asks for each key: the same answer",
    (
        "attention_softmax.cuh",
        0,
        "LLMC_DEVICE bool sees_all(int first, int last, int start, int stop) { return first <= start && stop «<=» last; }",
    ): "false where it could be true asks for each key: the same answer",
    (
        "attention_prefill.cuh",
        0,
        "static constexpr bool kQueriesStay = kSteps «<=» 8 && kSplit / 2 + kSteps * 4 + kPartSteps * 8 <= 128;",
    ): "queries are read again from where they lie: slower, but the same",
    (
        "attention_prefill.cuh",
        0,
        "static constexpr bool kQueriesStay = kSteps <= 8 && kSplit / 2 + kSteps * 4 + kPartSteps * 8 «<=» 128;",
    ): "queries are read again from where they lie: slower, but the same",
    (
        "attention_prefill.cuh",
        1,
        "for (int b = 0; b «<» Layer::kBlocks; b++) {",
    ): "`seen` has no bit for a block behind the split's last",
    (
        "linear.cuh",
        0,
        "if (Epilogue::kWidth % kV == 0 || col + kV «<=» Epilogue::kWidth) {",
    ): "the last whole vector is finished column by column",
    (
        "linear.cuh",
        0,
        "static constexpr bool kEarlyWeights = BT «<=» 64;",
    ): "when weights are fetched changes no result",
    (
        "linear.cuh",
        0,
        "static constexpr bool kTotals = !PARALLEL && kSlices «>» 1; // this block adds slices up",
    ): "adds the only slice to zero; no sum is -0, as each starts from 0",
    ("linear_mma.cuh", 0, "for (int s = 0; s «<» STAGES - 1; s++) fetch_w(first + s);"): _TWICE,
    ("linear_mma.cuh", 0, "for (int s = 0; s «<» STAGES - 1; s++) {"): _TWICE,
    (
        "linear_mma.cuh",
        0,
        "if (token0 «>=» count) {  // nothing to do: but no copy may land in shared memory that is another block's by then",
    ): "a block without tokens computes with zeros and stores nothing",
    (
        "race.cuh",
        0,
        "for (int odd = 17; odd «>» 0; odd -= 2) p = p * z + 1.0 / odd;",
    ): "an odd number is not 0",
    ("race.cuh", 0, "if (s «>» score || (s == score && i < id)) score = s, id = i;"): _TIES,
    ("race.cuh", 0, "if (s > score || (s == score && i «<» id)) score = s, id = i;"): _TIES,
    (
        "race.cuh",
        0,
        "return fmaf(float(float_bits(float(word >> 8))), -8.2629582e-8f, distance(x) + 104.66523f) «>» bound;",
    ): _BOUND,
    (
        "race.cuh",
        0,
        "return __ballot_sync(0xffffffffu, distance(nearest) + 36.8f «>» bound) == 0;",
    ): _BOUND,
    (
        "sample.cuh",
        0,
        "if (largest > e.largest || (largest == e.largest && id «<» e.id)) e.largest = largest, e.id = id;",
    ): "equal values and equal ids: the assignment changes nothing",
    (
        "sample.cuh",
        0,
        "const Tokens tokens = few «<=» LIST ? Tokens{nullptr, 0, few, 0.0f, 1.0f, 0} : all;",
    ): _ALL,
    (
        "sample.cuh",
        0,
        "float v = flushed(raw «>» 0.0f ? raw / row.repetition_penalty : raw * row.repetition_penalty);",
    ): "zero divided by a penalty (1e-6 to 1e6) is the zero that their product is",
    (
        "sample.cuh",
        0,
        "for (int base = 0; base «<» kBlocks; base += THREADS / 4) {",
    ): "one more round, of blocks behind the last: of no id below VALID, and not stored",
    (
        "sample.cuh",
        0,
        "if (w «>=» kLikely) Select::append(s.select, u[i / 4].x[i % 4], w, id);",
    ): "exp_f32 gives 1e-6f for no argument: the two next to log 1e-6 give 6 ulp more and 2 ulp less",
    (
        "sample.cuh",
        0,
        "for (int i = 0; i «<» kBlocks; i += 8) {",
    ): "adds eight zeros more",
    (
        "sample.cuh",
        0,
        "if (listed «<=» LIST && (by_rank || by_sum || by_weight)) {  // do the filters leave likely tokens alone?",
    ): _ALL,
    ("sample.cuh", 0, "const bool within = by_rank ? row.top_k «<=» likely.end"): _ALL,
    ("sample.cuh", 0, "const bool by_weight = row.min_p «>=» kLikely;"): _ALL,
    (
        "sample.cuh",
        0,
        ": by_weight || Select::kept_weight(s.select, likely, kept) «>=» whole;",
    ): _ALL,
    (
        "selection.cuh",
        0,
        "for (int base = tokens.first / 4 * 4; base «<» tokens.end; base += THREADS * 4) {",
    ): "one more round in which no token is live",
    (
        "sample.cuh",
        0,
        "static LLMC_DEVICE bool filters(const SampleRow& row) { return by_rank(row) || by_sum(row) || row.min_p «>» 0.0f; }",
    ): "without a filter all tokens are kept, weighed or not",
    (
        "sample.cuh",
        0,
        "for (int step = 0; step «<» 2; step++) {  // top_k, then top_p",
    ): "a third step would count tokens, and ask for more than there are",
    (
        "winner.cuh",
        0,
        "for (int base = -THREADS; base «<» count; base += THREADS) {",
    ): "one more round in which nobody runs",
    (
        "winner.cuh",
        0,
        "for (int k = 0; k «<» 4; k++) {",
    ): "behind the fourth token is none",
}
