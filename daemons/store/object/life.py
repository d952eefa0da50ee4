"""Which life of which node writes here: the latest, whoever it is. An earlier one that still runs stops writing.

That is a node that was replaced while it hung; or, for good, one of another cluster that was given the same bucket,
prefix and node id. Each life leaves a key of its own, numbered above all that it found.
"""

import logging
import re
from typing import Final

from daemons.core.clock import Clock
from daemons.core.errors import Unavailable
from daemons.store.object.bucket import ObjectBucket
from daemons.store.ssd.buckets import RandomBits

log = logging.getLogger(__name__)

LIVES: Final = "life/"
_NAME: Final = re.compile(LIVES + r"([0-9a-f]{8})-[0-9a-f]{16}")
_CHECK_S: Final = 10.0


class Life:
    """The writer's thread only."""

    def __init__(self, bucket: ObjectBucket, clock: Clock, random_bits: RandomBits) -> None:
        self._bucket = bucket
        self._clock = clock
        self._random_bits = random_bits
        self._key = ""
        self._check_s = 0.0

    def begin(self) -> list[str]:
        """Leave a key above all others, once; those of earlier lives, which can go. Raises Unavailable."""
        if self._key:
            return []
        found = self._list()
        number = max((int(_number(key), 16) for key in found), default=0) + 1
        key = f"{LIVES}{number:08x}-{self._random_bits(64):016x}"
        self._bucket.put(key, memoryview(b"-"))
        self._key, self._check_s = key, self._clock() + _CHECK_S
        return found

    def check(self) -> None:
        """Now and then. Raises Unavailable for good once a later life has begun."""
        now_s = self._clock()
        if now_s < self._check_s:
            return
        if any(key > self._key for key in self._list()):
            log.error("object tier is written by another node of the same name")
            raise Unavailable(
                "another node writes to this bucket under the same object.prefix and node.id: give one of them, or one "
                "of two clusters, another prefix, and start it again"
            )
        self._check_s = now_s + _CHECK_S

    def _list(self) -> list[str]:
        return [found.key for found in self._bucket.list(LIVES) if _NAME.fullmatch(found.key)]


def _number(key: str) -> str:
    return key.removeprefix(LIVES)[:8]
