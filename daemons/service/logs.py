"""Log lines to stderr: journald priority when systemd reads them, time and level when a person does."""

import logging
import os
from typing import Literal

from daemons.service.bounded_log import BoundedHandler

_PRIORITY = {"DEBUG": 7, "INFO": 6, "WARNING": 4, "ERROR": 3, "CRITICAL": 2}


class _Formatter(logging.Formatter):
    def __init__(self, node: str, for_journal: bool) -> None:
        super().__init__(
            "%(message)s" if for_journal else "%(asctime)s %(levelname)s %(node)s %(message)s",
            datefmt="%H:%M:%S",
        )
        self.node = node
        self.for_journal = for_journal

    def format(self, record: logging.LogRecord) -> str:
        record.node = self.node
        text = super().format(record)
        if not self.for_journal:
            return text
        prefix = f"<{_PRIORITY.get(record.levelname, 6)}>"
        return "\n".join(prefix + line for line in text.splitlines())


def set_up_logging(node: str, level: Literal["debug", "info", "warning", "error"]) -> None:
    handler = BoundedHandler()
    handler.setFormatter(_Formatter(node, "JOURNAL_STREAM" in os.environ))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for chatty in ("httpx", "httpcore", "uvicorn.access", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
