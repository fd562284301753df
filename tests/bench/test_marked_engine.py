"""Marks of the step profile: put around every kernel of both entries, and read back as what those compute."""

from bench.cpu.marked_engine import Mark, mark_sources

GENERATED = """\
inline void helper() {
  w.sync();
}
// ---- prefill
void prefill(void* args, const Worker& w) {
  const StepView& s = *(const StepView*)args;
  // rows model.layers.0.input_layernorm -> bf16[T, 576]
  rows_1(s.token_rows<float>(0), w);
  w.sync();
  // packed_linear lm_head -> f32[R, 64]
  linear<Bf16>(Weights{s.weight<void>(8), nullptr, 64, 32}, s.sampled_rows<void>(0), s.in.num_rows, Epilogue_1{x}, w);
  w.sync();
  // sample  -> i32[R]
  finish_rows(s, w);
}

// ---- decode
void decode(void* args, const Worker& w) {
  const StepView& s = *(const StepView*)args;
  // packed_linear model.layers.11.mlp + model.layers.11.mlp.down_proj -> f32[T, 96]
  linear<Int8<64>>(Weights{s.weight<void>(8), s.weight<float>(9), 96, 64}, s.x<void>(0), s.in.num_tokens, E{}, w);
  w.sync();
}
"""


def test_marks_of_every_kernel() -> None:
    _, marks = mark_sources(GENERATED)
    assert marks == [
        Mark("prefill", "rows", "input_layernorm", 0, 0, True),
        Mark("prefill", "packed_linear", "lm_head", 64 * 32 * 2, 64 * 32, False),
        Mark("prefill", "sample", "", 0, 0, True),
        Mark("decode", "packed_linear", "mlp + mlp.down_proj", 96 * 64, 96 * 64, True),
    ]


def test_each_kernel_is_marked_before_and_after_its_barrier() -> None:
    text, _ = mark_sources(GENERATED)
    lines = [line.strip() for line in text.splitlines() if "mark_" in line or line.strip() == "w.sync();"]
    assert lines == [
        "w.sync();",  # of another function: left alone
        "mark_begin(w);",
        *("mark_busy(w, 0);", "w.sync();", "mark_waited(w, 0);"),
        *("mark_busy(w, 1);", "w.sync();", "mark_waited(w, 1);"),
        "mark_busy(w, 2);",  # the last kernel of a step has no barrier of its own
        "mark_begin(w);",
        *("mark_busy(w, 3);", "w.sync();", "mark_waited(w, 3);"),
    ]


def test_the_source_itself_is_kept() -> None:
    text, _ = mark_sources(GENERATED)
    assert [line for line in text.splitlines() if "mark" not in line] == GENERATED.splitlines()
