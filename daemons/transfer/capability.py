"""Descriptors that open one thing: these ranges of a region, for one operation, until the owner's clock says so.

The owner signs them with a key of its epoch and keeps no list; what was changed on the way does not verify.
"""

import hashlib
import hmac
import secrets
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Literal

import msgspec

from daemons.core.errors import TransferError
from daemons.protocol.base import MALFORMED, Record
from daemons.protocol.segment import GenerationWord, Grant, RegionRef, Strided

Operation = Literal["read", "write"]
MAX_RANGES = 512
_MAC_BYTES = 16
_OFFSET = attrgetter("offset")


class BadCapability(TransferError):
    """Missing, forged, expired, or for other bytes or another operation; nothing was moved."""

    code = "bad_capability"


class Capability(Record, frozen=True, kw_only=True):
    """To be sent to whoever may do what `grant` says; valid for the holder, whoever that is."""

    region: RegionRef
    grant: Grant


encode_grant = msgspec.msgpack.Encoder().encode
_decode_grant = msgspec.msgpack.Decoder(Grant).decode


class CapabilityKey:
    """Signs and checks for one epoch. Pure but for the clock it is given, which is the owner's.

    With the cluster's secret everyone who knows it signs alike: the master does so for the nodes that it names.
    """

    def __init__(
        self, epoch: int, secret: bytes | None = None, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._epoch = epoch
        self._key = secrets.token_bytes(32) if secret is None else _key_of(epoch, secret)
        self._now_s = now_s

    def renew(self, secret: bytes) -> None:
        """Grants of before do not verify any more."""
        self._key = _key_of(self._epoch, secret)

    def grant(
        self,
        region_id: int,
        ranges: Sequence[Strided],
        operation: Operation,
        ttl_s: float,
        generation: tuple[int, int] | None = None,
    ) -> Grant:
        """The caller has checked that the ranges lie inside the region."""
        if not 0 < len(ranges) <= MAX_RANGES:
            raise TransferError(f"a capability has 1..{MAX_RANGES} ranges, not {len(ranges)}")
        word = generation and GenerationWord(region_id=generation[0], index=generation[1])
        unsigned = Grant(
            operation=operation,
            ranges=list(ranges),
            expires_ms=int((self._now_s() + ttl_s) * 1000),
            generation=word,
            mac=b"",
        )
        return msgspec.structs.replace(unsigned, mac=self._mac(region_id, unsigned))

    def check(
        self,
        packed: bytes,
        region_id: int,
        operation: Operation,
        ranges: Sequence[Strided],
        generation: tuple[int, int] | None,
    ) -> None:
        """Raise BadCapability unless `packed` allows all of it now."""
        if not packed:
            raise BadCapability(
                "who proves no daemon of the cluster (by its key, or transfer.secret_file) needs a capability; "
                "the request has none"
            )
        try:
            grant = _decode_grant(packed)
        except MALFORMED as error:
            raise BadCapability(f"the capability cannot be read: {error}") from error
        unsigned = msgspec.structs.replace(grant, mac=b"")
        if not hmac.compare_digest(grant.mac, self._mac(region_id, unsigned)):
            raise BadCapability("the capability was not given out by this process for this region")
        if grant.expires_ms <= self._now_s() * 1000:
            raise BadCapability("the capability has expired")
        if grant.operation != operation:
            raise BadCapability(f"the capability is for {grant.operation}, not {operation}")
        word = grant.generation and (grant.generation.region_id, grant.generation.index)
        if generation not in (None, word):
            raise BadCapability("the capability is for another generation word")
        granted = sorted(grant.ranges, key=_OFFSET)
        offsets = [each.offset for each in granted]
        for wanted in ranges:
            # What covers it begins at or before it, and mostly is the last that does: hundreds ask for hundreds.
            first = bisect_right(offsets, wanted.offset)
            if not any(_covers(granted[index], wanted) for index in range(first - 1, -1, -1)):
                raise BadCapability("the request leaves the ranges of its capability")

    def _mac(self, region_id: int, unsigned: Grant) -> bytes:
        signed = msgspec.msgpack.encode((self._epoch, region_id, unsigned))
        return hashlib.blake2b(signed, key=self._key, digest_size=_MAC_BYTES).digest()


def _key_of(epoch: int, secret: bytes) -> bytes:
    return hmac.digest(secret, b"mooncake capability" + epoch.to_bytes(8, "little"), hashlib.sha256)


def _covers(granted: Strided, wanted: Strided) -> bool:
    """Whether each run of `wanted` lies inside one run of `granted`; both are well formed."""
    if granted.num_rows == 1:
        return granted.offset <= wanted.offset and wanted.end <= granted.end
    row, column = divmod(wanted.offset - granted.offset, granted.stride_bytes)
    is_same_step = wanted.num_rows == 1 or wanted.stride_bytes == granted.stride_bytes
    return (
        is_same_step
        and row >= 0
        and column + wanted.row_bytes <= granted.row_bytes
        and row + wanted.num_rows <= granted.num_rows
    )
