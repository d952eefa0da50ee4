"""mc-gateway, the process."""

import sys

from daemons.config.mc_gateway import GatewayConfig
from daemons.mc_gateway.app import GatewayApp
from daemons.service.daemon import run_daemon


def main() -> int:
    return run_daemon("mc-gateway", GatewayConfig, GatewayApp)


if __name__ == "__main__":
    sys.exit(main())
