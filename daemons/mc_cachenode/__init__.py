"""mc-cachenode: lends memory to the pool, pulls blocks into it, and is the authority on what is sealed there."""
