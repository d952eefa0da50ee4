"""The SSD tier: blocks in bucket log files, bounded, checksummed, and found again after every start."""

from daemons.store.ssd.files import BucketDirectory, BucketFile, DiskDirectory
from daemons.store.ssd.settings import SsdCounters, SsdSettings
from daemons.store.ssd.tier import SsdTier

__all__ = [
    "BucketDirectory",
    "BucketFile",
    "DiskDirectory",
    "SsdCounters",
    "SsdSettings",
    "SsdTier",
]
