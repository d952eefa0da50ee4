"""A cluster on this host for play: what it consists of, its processes, what is kept of it, how it ends."""
