"""Blocks that come in: a slot, the pull by a worker, the seal, the answer."""
