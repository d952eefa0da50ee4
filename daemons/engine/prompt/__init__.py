"""A prompt's rows: products and attention whose bits depend on no batch, chunk by chunk or in one pass."""
