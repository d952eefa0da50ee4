"""Waits for the disk without holding up the loop: what others hear only once it outlives all memory."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future

from daemons.rpc import Loop

Then = Callable[[BaseException | None], object]


def once_lasting(loop: Loop, waiting: "Sequence[Future[bool]]", then: Then) -> None:
    """Loop thread, as is `then`: at once where all is there already, else with the last one; with an error of any."""
    left = [done for done in waiting if not done.done()]
    num_left = len(left)

    def end() -> None:
        then(next((error for done in waiting if (error := done.exception()) is not None), None))

    def count() -> None:
        nonlocal num_left
        num_left -= 1
        if not num_left:
            end()

    for done in left:
        done.add_done_callback(lambda _: loop.call_soon_threadsafe(count))
    if not left:
        end()
