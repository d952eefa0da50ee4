"""The object tier: blocks in an S3-compatible store, many to an object, bounded, and found again without any disk."""

from daemons.store.object.bucket import ObjectBucket, StoredKey
from daemons.store.object.delete_journal import DeleteJournal
from daemons.store.object.s3 import S3Place, open_s3
from daemons.store.object.settings import ObjectCounters, ObjectSettings
from daemons.store.object.tier import ObjectTier

__all__ = [
    "DeleteJournal",
    "ObjectBucket",
    "ObjectCounters",
    "ObjectSettings",
    "ObjectTier",
    "S3Place",
    "StoredKey",
    "open_s3",
]
