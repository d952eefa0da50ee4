"""Entry point of mc-prefill."""

import sys

from daemons.config.mc_prefill import PrefillConfig
from daemons.service.daemon import App, run_daemon
from daemons.service.engine_extra import engine_extra


def main() -> int:
    return run_daemon("mc-prefill", PrefillConfig, _build)


def _build(config: PrefillConfig) -> App:
    """Imported here: --help and --check need no torch, and where it is missing, that is one line."""
    with engine_extra():
        from daemons.mc_prefill.app import PrefillApp
    return PrefillApp(config)


if __name__ == "__main__":
    sys.exit(main())
