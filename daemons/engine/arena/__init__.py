"""KV memory of an instance: slots, prefixes that stay, copies between slots, the host twin of an accelerator's."""
