"""A node's index file: what was sealed, freed and cleared, so that a restart finds it."""
