"""Reports to the master in order and one at a time, however many are lost or refused on the way.

A report whose reply was lost is sent again, only older, which the master ignores if it had it. What it refused once it
would refuse again, so that is not repeated: all is announced anew, ever more rarely.
"""

import logging
from typing import Final, Protocol

import msgspec

from daemons.core.errors import Exhausted, McError, Unavailable
from daemons.protocol.messages import Reply
from daemons.protocol.report import Report, ReportReply
from daemons.rpc import Loop
from daemons.service.master_link import MasterLink

log = logging.getLogger(__name__)

_RETRY_S: Final = 0.2
_REFUSED_RETRY_S: Final = (1.0, 60.0)
"""After the first refusal, and at most; each one doubles it."""
_TIMEOUT_S: Final = 2.0


class News(Protocol):
    """What there is to report, and who hears the answer."""

    def has_news(self) -> bool: ...

    def is_announcing(self) -> bool:
        """Whether an announcement goes on: its reports follow each other without a pause."""

    def next_report(self, sequence: int) -> Report:
        """What it takes is the report's from now on."""

    def on_heard(self, report: Report, reply: ReportReply) -> None:
        """Not called when the master asks for everything again."""

    def restart(self) -> None:
        """The master is to know nothing: all there is has become news."""


class ReportStream:
    """Loop thread only."""

    def __init__(self, loop: Loop, interval_s: float, news: News) -> None:
        self._loop = loop
        self._interval_s = interval_s
        self._news = news
        self._link: MasterLink | None = None
        self._sequence = 0
        self._life = 0
        """Counts announcements: a reply to a report of an earlier one means nothing."""
        self._in_flight: Report | None = None
        self._is_scheduled = False
        self._num_refusals = 0
        """In a row."""

    @property
    def is_unanswered(self) -> bool:
        """Whether a report is on its way."""
        return self._in_flight is not None

    def attach(self, link: MasterLink) -> None:
        """Nothing is sent before."""
        self._link = link

    def announce(self) -> None:
        """Start again from nothing: a master that is new, or that lost count of us."""
        self._life += 1
        self._sequence = 0
        self._in_flight = None
        self._news.restart()
        self._send()

    def schedule(self) -> None:
        """There is news: it goes out with what else comes within the interval."""
        if not self._is_scheduled and self._in_flight is None:
            self._is_scheduled = True
            self._loop.call_later(self._interval_s, self._flush)

    def _flush(self) -> None:
        self._is_scheduled = False
        if self._in_flight is None and self._news.has_news():
            self._send()

    def _send(self) -> None:
        """Without a master nothing is sent; joining one announces everything."""
        if self._link is not None and self._link.is_joined:
            self._sequence += 1
            self._post(self._link, self._news.next_report(self._sequence))

    def _post(self, link: MasterLink, report: Report) -> None:
        self._in_flight = report
        life, posted_s = self._life, self._loop.clock()

        def on_reply(reply: Reply | McError) -> None:
            self._on_reply(life, posted_s, report, reply)

        link.ask(report, timeout_s=_TIMEOUT_S, on_reply=on_reply)

    def _on_reply(self, life: int, posted_s: float, report: Report, reply: Reply | McError) -> None:
        if life != self._life:
            return
        if isinstance(reply, ReportReply):
            self._num_refusals = 0
            self._on_heard(report, reply)
        elif isinstance(reply, Unavailable | Exhausted):
            log.debug("report not heard why=%r", reply)
            self._loop.call_later(_RETRY_S, self._retry, life, posted_s, report)
        else:
            self._on_refused(life, reply)

    def _on_heard(self, report: Report, reply: ReportReply) -> None:
        self._in_flight = None
        if reply.announce:
            log.info("announcing again")
            self.announce()
            return
        self._news.on_heard(report, reply)
        if self._news.is_announcing():
            self._send()
        elif self._news.has_news():
            self.schedule()

    def _on_refused(self, life: int, why: Reply | McError) -> None:
        first_s, most_s = _REFUSED_RETRY_S
        delay_s = min(most_s, first_s * 2 ** min(self._num_refusals, 30))
        level = logging.DEBUG if self._num_refusals else logging.ERROR
        self._num_refusals += 1
        log.log(level, "report refused by the master why=%r again_in_s=%g", why, delay_s)
        self._loop.call_later(delay_s, self._announce_again, life)

    def _announce_again(self, life: int) -> None:
        if life == self._life:
            self.announce()

    def _retry(self, life: int, posted_s: float, report: Report) -> None:
        """A join in the meantime has started over and made it void. By its age the master knows what was cleared."""
        if life == self._life and self._link is not None and self._link.is_joined:
            older_ms = round((self._loop.clock() - posted_s) * 1000)
            older = msgspec.structs.replace(report, sealed=report.sealed.aged(older_ms))
            self._post(self._link, older)
