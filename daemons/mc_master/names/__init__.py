"""Objects under names: reserved, found, deleted, and kept deleted."""
