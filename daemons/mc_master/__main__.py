"""Entry point of mc-master."""

import sys

from daemons.config.mc_master import MasterConfig
from daemons.mc_master.app import MasterApp
from daemons.service.daemon import App, run_daemon


def reload(app: App, config: MasterConfig) -> None:
    """SIGHUP."""
    if isinstance(app, MasterApp):
        app.reload(config)


def is_reloaded(key: str) -> bool:
    return key.startswith(("conductor.", "pool.")) and key != "pool.eviction"


def main() -> int:
    return run_daemon("mc-master", MasterConfig, MasterApp, reload=reload, is_reloaded=is_reloaded)


if __name__ == "__main__":
    sys.exit(main())
