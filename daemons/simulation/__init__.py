"""A cluster on a virtual clock: the Conductor, directory and eviction of the live system over modelled instances."""
