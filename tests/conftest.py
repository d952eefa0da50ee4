"""What all tests share: none touches the operator's own directories but the model cache, which is slow to fill."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from kit import preloaded
from kit.daemon import SLACK

HERE = Path(__file__).resolve().parent

# How long an example takes says more about the machine than about what is tested. CI draws the same examples each
# time: a rare one is to be met by who runs the tests at home, not by a change that has nothing to do with it.
settings.register_profile("home", deadline=None)
EXAMPLES = round(100 / SLACK)
settings.register_profile(
    "ci", deadline=None, derandomize=True, database=None, max_examples=EXAMPLES
)
settings.load_profile("ci" if os.environ.get("CI") else "home")

# A shell starts what it runs in the background with SIGINT ignored, and children inherit that; tests interrupt theirs.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


preloaded.install()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """.ci/run looks for slow tests in tests/system alone: to collect all takes it ten seconds."""
    for item in items:
        if item.get_closest_marker("slow") and item.path.parent != HERE / "system":
            raise pytest.UsageError(f"{item.nodeid} is slow: those are in tests/system")
        given_up = item.get_closest_marker("timeout")
        if given_up is not None and SLACK > 1:
            item.add_marker(pytest.mark.timeout(given_up.args[0] * SLACK), append=False)


@pytest.fixture(scope="session", autouse=True)
def _private_directories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(home / "state"))
        patch.setenv("XDG_CONFIG_HOME", str(home / "config"))
        for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "STATE_DIRECTORY", "RUNTIME_DIRECTORY"):
            patch.delenv(name, raising=False)
        for name in ("COLUMNS", "LINES"):  # which test workers set for themselves
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session")
def checkout() -> Path:
    """Root of the source."""
    return Path(__file__).resolve().parent.parent
