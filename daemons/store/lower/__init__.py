"""What all tiers below DRAM share: the verbs a node knows them by, one writer, bounded reads, rests after failures."""

from daemons.store.lower.block_record import BlockRecord
from daemons.store.lower.tier import LowerTier

__all__ = ["BlockRecord", "LowerTier"]
