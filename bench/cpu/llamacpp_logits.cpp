// llama.cpp's logits at every position of given sequences, through its own library (llamacpp_logits.py).
//
// usage: llamacpp_logits MODEL.gguf THREADS SEQUENCES LENGTH < int32 ids > float32 logits [SEQUENCES][LENGTH][vocabulary]
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "llama.h"

static int fail(const char* what) {
  fprintf(stderr, "%s\n", what);
  return 1;
}

int main(int argc, char** argv) {
  if (argc != 5) return fail("expected MODEL.gguf THREADS SEQUENCES LENGTH");
  const int threads = atoi(argv[2]), sequences = atoi(argv[3]), length = atoi(argv[4]);
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (!model) return fail("cannot load the model");
  const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
  llama_context_params params = llama_context_default_params();  // flash attention where it finds it useful, KV in f16
  params.n_ctx = params.n_batch = params.n_ubatch = length;
  params.n_threads = params.n_threads_batch = threads;
  llama_context* context = llama_init_from_model(model, params);
  if (!context) return fail("cannot make a context");
  std::vector<llama_token> ids(length);
  llama_batch batch = llama_batch_init(length, 0, 1);
  for (int s = 0; s < sequences; ++s) {
    if (fread(ids.data(), sizeof(llama_token), length, stdin) != (size_t)length) return fail("too few ids");
    llama_memory_clear(llama_get_memory(context), true);
    batch.n_tokens = length;
    for (int i = 0; i < length; ++i) {
      batch.token[i] = ids[i];
      batch.pos[i] = i;
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = 0;
      batch.logits[i] = true;
    }
    if (llama_decode(context, batch)) return fail("cannot decode");
    for (int i = 0; i < length; ++i)
      if (fwrite(llama_get_logits_ith(context, i), sizeof(float), vocabulary, stdout) != (size_t)vocabulary)
        return fail("cannot write");
  }
  return fflush(stdout) ? fail("cannot write") : 0;
}
