"""One full-duplex link per node: transfers of the same sender, or to the same receiver, follow each other."""

from collections import defaultdict


class Network:
    """`bytes_per_s` in each direction."""

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self.sent_bytes = 0
        self._out_free_s: defaultdict[str, float] = defaultdict(float)
        self._in_free_s: defaultdict[str, float] = defaultdict(float)

    def send(self, source: str, target: str, num_bytes: int, *, now_s: float) -> float:
        """When the last byte is there."""
        start_s = max(now_s, self._out_free_s[source], self._in_free_s[target])
        end_s = start_s + num_bytes / self.bytes_per_s
        self._out_free_s[source] = self._in_free_s[target] = end_s
        self.sent_bytes += num_bytes
        return end_s
