// The contract between a CPU engine (model.so) and the runtime that loads it (runtime/cpu/library.py mirrors it field by
// field, runtime/step/row_sampling.py LlmcSampling; a test compares sizes and offsets). Plain C types only. All pointers
// stay owned by the caller and must live until the call returns.
#pragma once
#include <stdint.h>

#define LLMC_ABI_VERSION 3
#define LLMC_MAX_LOGPROBS 20
#define LLMC_NO_BLOCK (-1)  // a block table's entry whose block was given back; never read

extern "C" {

// How one row's next token is chosen. Order: repetition, presence and frequency penalties over `history`, bias,
// then temperature, top-k, top-p, min-p, then a race of the tokens that are left. temperature == 0 is greedy: the
// largest logit after penalties and bias, the lowest id on ties. Log-probabilities are of the raw logits, before all
// of this.
struct LlmcSampling {
  float temperature;           // >= 0
  float top_p;                 // (0, 1]; 1 = off
  float min_p;                 // [0, 1]; 0 = off
  float repetition_penalty;    // > 0; 1 = off (prompt and output tokens)
  float presence_penalty;      // 0 = off (output tokens)
  float frequency_penalty;     // 0 = off (output tokens)
  int32_t top_k;               // 0 = off
  int32_t num_logprobs;        // 0..LLMC_MAX_LOGPROBS alternatives wanted beside the chosen token
  uint64_t seed;               // tokens race with times drawn for (seed, sample_index, position, id): race.h
  uint32_t sample_index;       // which of a request's n samples this row belongs to
  uint32_t position;           // position in the sequence of the token being chosen
  const int32_t* history;      // [history_len] ids of the sequence so far: prompt, then output
  int32_t history_len;
  int32_t prompt_len;          // the first prompt_len of history are the prompt
  const int32_t* bias_ids;     // [num_bias]
  const float* bias;           // [num_bias] added to those logits
  int32_t num_bias;
  int32_t padding;
};

// One step over T tokens of S sequences, of which R rows get logits and, where asked, a sampled token.
struct LlmcStep {
  int32_t num_tokens;              // T, 1..max_tokens
  int32_t num_seqs;                // S, 1..max_seqs
  int32_t num_rows;                // R, 0..max_rows
  int32_t block_table_stride;      // entries between two sequences' block tables
  const int32_t* token_ids;        // [T]
  const int32_t* positions;        // [T] absolute, ascending by one inside a sequence
  const int32_t* seq_starts;       // [S+1] sequence i owns tokens seq_starts[i] .. seq_starts[i+1]-1
  const int32_t* block_tables;     // [groups, max_seqs, block_table_stride] blocks in the group's pool, enough for
                                   //   the last position of each sequence; LLMC_NO_BLOCK wholly behind the group's
                                   //   window of the sequence's first token
  const int32_t* rows;             // [R] token index whose logits are wanted, ascending
  const LlmcSampling* sampling;    // [R], or null: logits only
  float* logits;                   // [R, vocab] raw logits are copied here; or null
  int32_t* out_tokens;             // [R] chosen ids; -1 where the logits were not finite
  float* out_logprob;              // [R] log-probability of the chosen token
  int32_t* out_top_ids;            // [R, LLMC_MAX_LOGPROBS] best first
  float* out_top_logprobs;         // [R, LLMC_MAX_LOGPROBS]
};

struct LlmcEngine;
struct LlmcPool;  // threads that several engines of a process may run on, one at a time

// The KV blocks of one group: attention layers that keep the same positions.
struct LlmcKvPool {
  void* base;              // num_blocks * llmc_kv_block_bytes(group), 64-byte aligned
  int64_t num_blocks;
};

// What the caller promises for the life of an engine. Envelopes are run-time values: changing them recompiles nothing.
struct LlmcConfig {
  const void* weights;     // first byte of the data section of weights.safetensors, 64-byte aligned
  const LlmcKvPool* kv;    // [llmc_kv_groups()]; llmc_create copies it
  int32_t max_tokens;      // largest T of any step
  int32_t max_seqs;        // largest S of any step
  int32_t max_rows;        // largest R of any step
  int32_t max_seq_len;     // largest position + 1
  int32_t num_threads;     // >= 1; results do not depend on it
  int32_t padding;
  LlmcPool* pool;          // num_threads threads, made by any engine's library of this ABI; null: the engine's own
};

uint32_t llmc_abi_version(void);
int32_t llmc_kv_groups(void);
int64_t llmc_kv_block_bytes(int32_t group);             // bytes of one block, all layers of the group
int64_t llmc_arena_bytes(const LlmcConfig*);            // scratch that llmc_create will take
LlmcPool* llmc_pool_create(int32_t num_threads);        // starts num_threads - 1 threads; null: refused
void llmc_pool_destroy(LlmcPool*);                      // joins them; after the engines that run on it
LlmcEngine* llmc_create(const LlmcConfig*);             // without a pool makes one; null: out of memory
void llmc_destroy(LlmcEngine*);                         // and of the pool that it made
int32_t llmc_prefill(LlmcEngine*, const LlmcStep*);     // any mix of chunks and single tokens; 0 = done
int32_t llmc_decode(LlmcEngine*, const LlmcStep*);      // every sequence has exactly one token, which is sampled

}  // extern "C"
