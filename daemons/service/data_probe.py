"""Answers DataProbe: where the data path is, and how fast this process reads a peer's. One measurement at a time."""

import logging
import threading
from collections.abc import Sequence

from daemons.core.errors import Exhausted, McError
from daemons.protocol.probe import DataProbe, DataProbeReply, PathMeasure
from daemons.protocol.segment import RegionRef
from daemons.rpc import Call, Loop
from daemons.transfer import TransferEngine, contiguous
from daemons.transfer.probe import measure, probe_region

log = logging.getLogger(__name__)

_BUSY_MS = 500
_GRANT_S = 300.0
"""Long enough to measure many nodes one after the other."""


class DataProbes:
    """Loop thread only; measuring has a thread of its own for as long as it takes."""

    def __init__(self, loop: Loop, engine: TransferEngine, transports: Sequence[str]) -> None:
        self._loop = loop
        self._engine = engine
        self._transports = tuple(transports)
        self._is_busy = False

    def answer(self, call: Call, probe: DataProbe) -> None:
        if probe.target is None:
            call.reply(self._reply(None))
        elif self._is_busy:
            call.fail(Exhausted("another path is being measured", retry_after_ms=_BUSY_MS))
        else:
            self._is_busy = True
            threading.Thread(
                target=self._run, args=(call, probe.target), name="mc-probe", daemon=True
            ).start()

    def _run(self, call: Call, target: RegionRef) -> None:
        try:
            outcome: PathMeasure | McError = measure(
                target, self._transports, open_engine=self._engine.sibling
            )
        except McError as error:
            outcome = error
        except Exception as bug:  # or no path would ever be measured again
            log.exception("probe failed")
            outcome = McError(f"internal error: {type(bug).__name__}; see the log of this daemon")
        self._loop.call_soon_threadsafe(self._finish, call, outcome)

    def _finish(self, call: Call, outcome: PathMeasure | McError) -> None:
        self._is_busy = False
        if isinstance(outcome, McError):
            call.fail(outcome)
        else:
            call.reply(self._reply(outcome))

    def _reply(self, measured: PathMeasure | None) -> DataProbeReply:
        region = probe_region(self._engine)
        whole = [contiguous(0, region.size_bytes)]
        return DataProbeReply(
            data=self._engine.address,
            region=region,
            measured=measured,
            grant=self._engine.grant(region, whole, "read", _GRANT_S).grant,
        )
