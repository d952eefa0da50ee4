"""Models: KV arena, forward pass, sampling and the decode batch; the only home of torch."""
