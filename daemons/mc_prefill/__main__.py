"""Entry point of mc-prefill."""

import sys

from daemons.config.mc_prefill import PrefillConfig
from daemons.mc_prefill.app import PrefillApp
from daemons.service.daemon import run_daemon


def main() -> int:
    return run_daemon("mc-prefill", PrefillConfig, PrefillApp)


if __name__ == "__main__":
    sys.exit(main())
