"""Entry point of mc-decode."""

import sys

from daemons.config.mc_decode import DecodeConfig
from daemons.mc_decode.app import DecodeApp
from daemons.service.daemon import run_daemon


def main() -> int:
    return run_daemon("mc-decode", DecodeConfig, DecodeApp)


if __name__ == "__main__":
    sys.exit(main())
