"""mc-cachenode, the process."""

import sys

from daemons.config.mc_cachenode import CachenodeConfig
from daemons.mc_cachenode.app import CachenodeApp
from daemons.service.daemon import run_daemon


def main() -> int:
    return run_daemon("mc-cachenode", CachenodeConfig, CachenodeApp)


if __name__ == "__main__":
    sys.exit(main())
