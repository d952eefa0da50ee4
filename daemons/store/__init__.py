"""Where a block is and how long it stays: the directory, leases, eviction, segments, tiers."""
