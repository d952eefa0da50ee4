"""The published engine at work for `mcctl bench transfer --beside`, run by a Python that has it; imports none of ours.

    PYTHON published_worker.py MEMORY_BYTES VALUE

It says where its memory is, filled with VALUE, and then serves lines of JSON with `Order`'s fields, one answer each:
seconds of every transfer of the round. It ends with its stdin.
"""

import ctypes
import functools
import importlib
import json
import mmap
import os
import sys
import time
from typing import Any, TypedDict

_MIN_REPEATS = 3


class Order(TypedDict):
    """`blocks` of `size_bytes`, one behind the other, to or from another worker, again and again."""

    operation: str
    target: str
    address: int
    size_bytes: int
    blocks: int
    seconds: float


class Worker:
    """Its memory, and transfers between that and another one's."""

    def __init__(self, memory_bytes: int, value: int) -> None:
        self._engine: Any = importlib.import_module("mooncake.engine").TransferEngine()
        _check(self._engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), "initialize")
        self._memory = mmap.mmap(-1, memory_bytes)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        ctypes.memset(self.address, value, memory_bytes)
        _check(self._engine.register_memory(self.address, memory_bytes), "register_memory")
        self.target = f"127.0.0.1:{self._engine.get_rpc_port()}"

    def carry_out(self, order: Order) -> list[float]:
        size, blocks = order["size_bytes"], order["blocks"]
        here = [self.address + i * size for i in range(blocks)]
        there = [order["address"] + i * size for i in range(blocks)]
        name = f"transfer_sync_{order['operation']}"
        one = getattr(self._engine, name)
        many = getattr(self._engine, f"batch_{name}")
        move = functools.partial(many, order["target"], here, there, [size] * blocks)
        if blocks == 1:
            move = functools.partial(one, order["target"], here[0], there[0], size)
        took: list[float] = []
        deadline_s = time.perf_counter() + order["seconds"]
        while len(took) < _MIN_REPEATS or time.perf_counter() < deadline_s:
            started_s = time.perf_counter()
            _check(move(), name)
            took.append(time.perf_counter() - started_s)
        if order["operation"] == "read":
            self._check_arrived(size * blocks)
        return took

    def _check_arrived(self, length: int) -> None:
        """The other one's memory is all of another value."""
        ends = {self._memory[0], self._memory[length - 1]}
        if len(ends) != 1:
            raise RuntimeError("a READ brought something else than the memory read")


def _check(status: int, what: str) -> None:
    if status:
        raise RuntimeError(f"{what} returned {status}")


def main() -> None:
    # What the engine prints must not come between answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    worker = Worker(int(sys.argv[1]), int(sys.argv[2]))
    answers.write(json.dumps({"target": worker.target, "address": worker.address}) + "\n")
    for line in sys.stdin:
        answers.write(json.dumps(worker.carry_out(json.loads(line))) + "\n")
    os._exit(0)  # its threads do not end by themselves


if __name__ == "__main__":
    main()
