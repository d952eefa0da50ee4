"""Decides about each message of a server with keys, by the key its connection proved: the list as it is now, not as
it was at the handshake, so a key that is revoked is cut off between two messages.
"""

import logging
from collections import OrderedDict
from typing import Final

from daemons.core.ids import short
from daemons.protocol.access import refusal
from daemons.protocol.base import Message
from daemons.protocol.key import AllowedKey
from daemons.rpc.keys import AllowedList

log = logging.getLogger(__name__)

_MAX_PEERS: Final = 65_536


class RefusalLog:
    """How many were refused, and a line for each: the process's log writes the same one once a minute."""

    def __init__(self) -> None:
        self.num_refused = 0

    def add(self, text: str, *arguments: object) -> None:
        self.num_refused += 1
        log.warning(text, *arguments)


class Gate:
    """Loop thread only."""

    def __init__(self, allowed: AllowedList, refusals: RefusalLog) -> None:
        self._allowed = allowed
        self._refusals = refusals
        self._keys: OrderedDict[bytes, str] = OrderedDict()
        """By connection; the longest silent ones are forgotten, and get nothing more."""

    def meet(self, peer: bytes, key: str) -> AllowedKey | None:
        """Whose message this is; None for a key that is not on the list any more."""
        self._keys[peer] = key
        self._keys.move_to_end(peer)
        if len(self._keys) > _MAX_PEERS:
            self._keys.popitem(last=False)
        found = self._allowed.find(key)
        if found is None:
            was = self._allowed.revoked(key)
            name = was.node if was is not None else "unknown"
            self._refusals.add("refused node=%s key=%s why='not authorized'", name, short(key))
        return found

    def may_hear(self, peer: bytes) -> bool:
        """Whether this connection may be sent anything."""
        return self.owner(peer) is not None

    def owner(self, peer: bytes) -> AllowedKey | None:
        """Whose connection this is; None where nobody's that is let in."""
        return self._allowed.find(self._keys.get(peer, ""))

    def refusal(self, message: Message, owner: AllowedKey) -> str | None:
        why = refusal(message, owner)
        if why is not None:
            self._refusals.add(
                "refused node=%s role=%s op=%s key=%s why=%r",
                owner.node,
                owner.role,
                type(message).__name__,
                short(owner.public),
                why,
            )
        return why
