"""Text on both sides of a model: tokenizers, chat templates, streaming detokenizer. No torch, no I/O but loading."""
