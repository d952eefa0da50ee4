"""The life of a process: arguments, config, logging, readiness, signals, drain, exit status.

SIGTERM, SIGINT  drain: stop admitting, finish, leave; a second one ends at once
SIGHUP           reload what the daemon documents as reloadable
"""

import argparse
import functools
import gc
import logging
import signal
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from daemons.config.base import Section, load_config
from daemons.config.changes import changed_keys
from daemons.config.exposure import refuse_exposed
from daemons.core.errors import ConfigError, McError, exit_code
from daemons.rpc import Loop
from daemons.service.limits import raise_file_limit
from daemons.service.logs import set_up_logging
from daemons.service.notify import notify, watchdog_interval_s

log = logging.getLogger(__name__)

EXIT_OK = 0
_STATUS_INTERVAL_S = 5.0


class App(Protocol):
    """What a process's app.py provides. Built with its sockets listening."""

    loop: Loop

    def run(self) -> None:
        """Serve until the loop is stopped."""

    def drain(self) -> None:
        """Stop admitting; stop the loop once what was accepted is done. Loop thread."""

    def status(self) -> str:
        """One line for `systemctl status`."""

    def close(self) -> None:
        """Free everything; after `run` returned."""


@runtime_checkable
class TwoLoops(Protocol):
    """An App that serves from another loop than `loop`, too: for the watchdog it lives only while both turn."""

    def in_other_loop(self, action: Callable[[], object]) -> None:
        """Soon, once; never where that loop hangs. Loop thread."""


Config = TypeVar("Config", bound=Section)


@functools.cache
def software_version() -> str:
    """Looked up once: to read a package's metadata takes milliseconds, and nodes tell it with every beat."""
    try:
        return version("mooncake-mc")
    except PackageNotFoundError:
        return "unknown"


def run_daemon(
    name: str,
    config_type: type[Config],
    build: Callable[[Config], App],
    *,
    reload: Callable[[App, Config], object] | None = None,
    is_reloaded: Callable[[str], bool] = lambda _: False,
) -> int:
    """Exit status of the process. `reload` takes over the keys that `is_reloaded` names; log.level is here.

    An error at start is one line on stderr and the status of its family; 78 for one that the operator must put right,
    where systemd does not start it again.
    """
    arguments = _parse_arguments(name)
    try:
        config = load_config(arguments.config, config_type, arguments.set)
        if not arguments.insecure:
            refuse_exposed(config)
        if arguments.check:
            sys.stdout.write(f"{arguments.config or 'defaults'}: ok\n")
            return EXIT_OK
        set_up_logging(config.node.id, config.log.level)  # type: ignore[attr-defined]  # every process has both
        raise_file_limit()
        app = build(config)
    except McError as error:
        sys.stderr.write(f"{name}: {error.message}\n")
        return exit_code(error)

    def reload_config() -> None:
        try:
            fresh = load_config(arguments.config, config_type, arguments.set)
        except ConfigError as error:
            log.error("reload refused why=%s", error.message)  # noqa: TRY400 - an operator's slip, no traceback
            return
        notify("RELOADING=1")
        set_up_logging(config.node.id, fresh.log.level)  # type: ignore[attr-defined]
        if reload is not None:
            reload(app, fresh)
        notify("READY=1")
        log.info("config reloaded")
        changed = changed_keys(config, fresh)
        waiting = [key for key in changed if key != "log.level" and not is_reloaded(key)]
        if waiting:
            log.warning("config needs a restart keys=%s", ",".join(waiting))

    _install_signals(app, reload_config)
    return _serve(name, app)


def _serve(name: str, app: App) -> int:
    def report() -> None:
        notify(f"STATUS={app.status()}")

    watchdog_s = watchdog_interval_s()
    if watchdog_s is not None:
        app.loop.every(watchdog_s, lambda: _tell_watchdog(app))
    app.loop.every(_STATUS_INTERVAL_S, report)
    # What exists now lives as long as the process: keep it out of every later collection.
    gc.collect()
    gc.freeze()
    notify("READY=1", f"STATUS={app.status()}")
    log.info("%s ready %s", name, app.status())
    try:
        app.run()
    finally:
        notify("STOPPING=1")
        app.close()
    log.info("%s ended", name)
    return EXIT_OK


def _tell_watchdog(app: App) -> None:
    tell = partial(notify, "WATCHDOG=1")
    if isinstance(app, TwoLoops):
        app.in_other_loop(tell)
    else:
        tell()


def _install_signals(app: App, reload_config: Callable[[], None]) -> None:
    is_draining = False

    def on_stop(_signum: int, _frame: object) -> None:
        nonlocal is_draining
        if is_draining:
            app.loop.stop()
            return
        is_draining = True
        notify("STOPPING=1")
        app.loop.call_soon_threadsafe(app.drain)

    signal.signal(signal.SIGTERM, on_stop)
    signal.signal(signal.SIGINT, on_stop)
    signal.signal(
        signal.SIGHUP, lambda _signum, _frame: app.loop.call_soon_threadsafe(reload_config)
    )


def _parse_arguments(name: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=name, description=f"See {name}(8).")
    parser.add_argument("--config", type=Path, help=f"TOML file, e.g. /etc/mooncake/{name}.toml")
    parser.add_argument(
        "--set",
        action="append",
        metavar="SECTION.KEY=VALUE",
        help="lay one value over the file; may be repeated",
    )
    parser.add_argument("--check", action="store_true", help="check the config and exit")
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="listen where other hosts reach it without keys: everyone there may do everything",
    )
    parser.add_argument("--version", action="version", version=f"{name} {software_version()}")
    return parser.parse_args()
