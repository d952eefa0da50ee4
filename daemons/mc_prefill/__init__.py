"""mc-prefill: turns prompts into KV, loads reused prefixes, offers new KV layer by layer."""
