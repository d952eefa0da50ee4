"""A node's DRAM: segments cut into slots, the seal that ends a block, the workers that copy and hash."""
