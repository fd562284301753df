// What llama.cpp's own tokenizer makes of texts: the oracle that __main__.py asks.
//
// usage: llama_cpp_ids VOCABULARY.gguf < TEXTS     one text a line, its UTF-8 in hex
//
// prints `ids 1 2 3` for each text (control tokens parsed, nothing added), and about the vocabulary `eog`, `bos`, `eos`,
// `add_bos`, `add_eos`, and `piece HEX` for each id in order.
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "llama.h"

static std::string from_hex(const std::string & line) {
    std::string text;
    for (size_t i = 0; i + 1 < line.size(); i += 2) text += (char) std::stoi(line.substr(i, 2), nullptr, 16);
    return text;
}

static std::vector<llama_token> encode(const llama_vocab * vocab, const std::string & text) {
    std::vector<llama_token> ids(4 * text.size() + 16);
    const int n = llama_tokenize(vocab, text.data(), text.size(), ids.data(), ids.size(), false, true);
    if (n < 0) throw std::runtime_error("more ids than bytes");
    ids.resize(n);
    return ids;
}

static std::string piece(const llama_vocab * vocab, llama_token id) {
    std::string text(4096, '\0');
    const int n = llama_token_to_piece(vocab, id, text.data(), text.size(), 0, false);
    if (n < 0) throw std::runtime_error("a piece of more than 4096 bytes");
    return text.substr(0, n);
}

int main(int argc, char ** argv) {
    if (argc != 2) return 2;
    llama_log_set([](ggml_log_level level, const char * text, void *) {
        if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
    }, nullptr);
    llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    llama_model * model = llama_model_load_from_file(argv[1], params);
    if (!model) return 1;
    const llama_vocab * vocab = llama_model_get_vocab(model);
    for (std::string line; std::getline(std::cin, line);) {
        printf("ids");
        for (const llama_token id : encode(vocab, from_hex(line))) printf(" %d", id);
        printf("\n");
    }
    const int n = llama_vocab_n_tokens(vocab);
    printf("eog");
    for (int id = 0; id < n; id++) if (llama_vocab_is_eog(vocab, id)) printf(" %d", id);
    printf("\nbos %d\neos %d\nadd_bos %d\nadd_eos %d\n", llama_vocab_bos(vocab), llama_vocab_eos(vocab),
           llama_vocab_get_add_bos(vocab), llama_vocab_get_add_eos(vocab));
    for (int id = 0; id < n; id++) {
        printf("piece ");
        for (const unsigned char c : piece(vocab, id)) printf("%02x", c);
        printf("\n");
    }
}
