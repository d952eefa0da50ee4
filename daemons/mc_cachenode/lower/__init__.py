"""Blocks on their way to the tiers below DRAM, and back for a reader."""
