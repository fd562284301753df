"""llama.cpp's own answers about GGUF vocabularies, stored, and the means to ask it again."""
