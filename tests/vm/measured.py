"""Measurements, for whoever reads the log; printed at the end of a run."""

LINES: list[str] = []


def report(line: str) -> None:
    LINES.append(line)
