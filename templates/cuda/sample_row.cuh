// sample_row.cuh - how one row's next token is chosen, in device memory: abi.h's LlmcSampling with offsets into the
// step's arrays of histories and biases instead of pointers of the host. runtime/cuda/step/sampling.py mirrors it.
#pragma once
#include "device.cuh"

// Alternatives a row may ask for, and the width of their output rows.
enum : int { kMaxLogprobs = 20 };

struct SampleRow {
  float temperature;         // 0: greedy
  float top_p;               // 1: off
  float min_p;               // 0: off
  float repetition_penalty;  // 1: off
  float presence_penalty;    // 0: off
  float frequency_penalty;   // 0: off
  i32 top_k;                 // 0: off
  i32 num_logprobs;          // 0..kMaxLogprobs
  u64 seed;
  u32 sample_index;
  u32 position;
  i32 history;      // where the row's ids begin in the array of histories
  i32 history_len;  // 0 where no penalty needs them
  i32 prompt_len;   // of them, the first ones that are the prompt
  i32 bias;         // where the row's entries begin in the arrays of bias ids and biases
  i32 num_bias;
  i32 wanted;  // 0: only the row's logits are asked for, and nothing is written
};
