"""mc-decode: pulls KV, batches continuously, streams tokens."""
