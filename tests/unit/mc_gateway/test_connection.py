"""HTTP connections of a real server: too many of them, and none that can be taken."""

import asyncio
import contextlib
import logging
import resource
import socket
from functools import partial
from typing import Any

import pytest
import uvicorn
from starlette.responses import PlainTextResponse

from daemons.mc_gateway.connection import HttpConnection, Room, counted_address, on_loop_error

pytestmark = pytest.mark.timeout(60)
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
WITHIN_S = 20.0


class Bench:
    """A server in the running loop."""

    def __init__(self, listener: socket.socket, room: Room) -> None:
        self.address = listener.getsockname()
        self.room = room
        http: Any = partial(HttpConnection, head_timeout_s=60.0, room=room)
        config = uvicorn.Config(
            PlainTextResponse("fine"),
            http=http,
            lifespan="off",
            log_config=None,
            ws="none",
        )
        self.server = uvicorn.Server(config)
        self._serving = asyncio.ensure_future(self.server.serve(sockets=[listener]))

    async def ask(self, address: str = "127.0.0.1") -> tuple[bytes, asyncio.StreamWriter]:
        """The beginning of the answer; nothing where it was closed."""
        reader, writer = await asyncio.open_connection(*self.address, local_addr=(address, 0))
        writer.write(GET)
        try:
            return await asyncio.wait_for(reader.read(12), WITHIN_S), writer
        except ConnectionError:
            return b"", writer

    async def end(self) -> None:
        self.server.should_exit = True
        await asyncio.wait_for(self._serving, WITHIN_S)


async def close(*writers: asyncio.StreamWriter) -> None:
    for writer in writers:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def expect_room(bench: Bench) -> None:
    """Those that left may not be gone yet."""
    answer = b""
    async with asyncio.timeout(WITHIN_S):
        while not answer:
            answer, writer = await bench.ask()
            await close(writer)
    assert answer == b"HTTP/1.1 200"


async def fill(listener: socket.socket) -> None:
    bench = Bench(listener, Room(2, 9))
    addresses = [f"127.0.0.{number}" for number in range(1, 5)]
    answers = [await bench.ask(address) for address in addresses]
    assert [answer for answer, _ in answers] == [b"HTTP/1.1 200", b"HTTP/1.1 200", b"", b""]
    await close(*(writer for _, writer in answers))
    await expect_room(bench)
    await bench.end()


def test_one_connection_too_many_is_closed_at_once_and_those_before_are_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        asyncio.run(fill(listener))
    assert "connections are closed at once max=2" in caplog.text


async def crowd(listener: socket.socket) -> None:
    """One address holds what it may, and never sends another head; others are served, and so is the first one after."""
    bench = Bench(listener, Room(100, 3))
    held = [await bench.ask() for _ in range(3)]
    for _, writer in held:
        writer.write(b"GET / HT")
    refused, more = await bench.ask()
    assert refused == b""
    served, other = await bench.ask("127.0.0.2")
    assert served == b"HTTP/1.1 200"
    await close(more, other, *(writer for _, writer in held))
    await expect_room(bench)
    await bench.end()


def test_one_address_holds_its_share_of_the_connections_and_others_are_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        asyncio.run(crowd(listener))
    assert "connections are closed at once address=127.0.0.1 max=3" in caplog.text


def test_one_address_never_gets_more_than_half_of_the_room() -> None:
    room = Room(4, 1024)
    assert [room.enter("10.0.0.1", number) for number in range(1, 4)] == [True, True, False]
    assert room.enter("10.0.0.2", 3)
    room.leave("10.0.0.1")
    assert room.enter("10.0.0.1", 3)


@pytest.mark.parametrize(
    ("host", "counted"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:aaaa::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:bbbb::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_of_ipv6_a_network_counts_as_one_address(host: str, counted: str) -> None:
    assert counted_address(host) == counted


async def starve(listener: socket.socket) -> None:
    """A connection for which there is no file, and an end before it is tried again."""
    loop, has_failed = asyncio.get_running_loop(), asyncio.Event()

    def on_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        on_loop_error(loop, context)
        has_failed.set()

    loop.set_exception_handler(on_error)
    bench = Bench(listener, Room(9, 9))
    answer, writer = await bench.ask()
    assert answer == b"HTTP/1.1 200"
    writer.close()
    await writer.wait_closed()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as waiting:
        waiting.setblocking(False)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            await loop.sock_connect(waiting, bench.address)
            await asyncio.wait_for(has_failed.wait(), WITHIN_S)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await bench.end()
    has_failed.clear()
    # What asyncio does a second later, whatever has become of the listener.
    loop.call_soon(loop._start_serving, None, listener)  # type: ignore[attr-defined]
    await asyncio.wait_for(has_failed.wait(), WITHIN_S)


def test_where_there_is_no_file_for_a_connection_the_log_has_lines_and_no_tracebacks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, caplog.at_level(logging.WARNING):
        asyncio.run(starve(listener))
    assert "no connection is taken for a moment why=Too many open files" in caplog.text
    assert "Traceback" not in caplog.text
    assert "asyncio" not in {record.name for record in caplog.records}


def test_what_is_another_error_is_told_as_before(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(on_loop_error)
        loop.call_soon(int, "x")
        await asyncio.sleep(0)

    asyncio.run(fail())
    assert "ValueError: invalid literal" in caplog.text
