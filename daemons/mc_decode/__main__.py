"""Entry point of mc-decode."""

import sys

from daemons.config.mc_decode import DecodeConfig
from daemons.service.daemon import App, run_daemon
from daemons.service.engine_extra import engine_extra


def main() -> int:
    return run_daemon("mc-decode", DecodeConfig, _build)


def _build(config: DecodeConfig) -> App:
    """Imported here: --help and --check need no torch, and where it is missing, that is one line."""
    with engine_extra():
        from daemons.mc_decode.app import DecodeApp
    return DecodeApp(config)


if __name__ == "__main__":
    sys.exit(main())
