"""Model directories: found, read, converted from GGUF, named by what a KV block depends on."""
