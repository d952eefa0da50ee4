"""Entry point of mc-decode."""

import sys
from functools import partial

from daemons.config.mc_decode import DecodeConfig
from daemons.engine.paced import open_paced
from daemons.mc_decode.app import DecodeApp
from daemons.service.daemon import App, run_daemon
from daemons.service.engine_extra import engine_extra
from daemons.service.paths import state_path
from daemons.simulation.hardware import find_profile


def main() -> int:
    return run_daemon("mc-decode", DecodeConfig, _build)


def _build(config: DecodeConfig) -> App:
    """Torch is imported where it computes: --help, --check and a rehearsal need none, and its lack is one line."""
    if config.engine.kind == "paced":
        return DecodeApp(config, partial(open_paced, times=find_profile(config.engine.profile)))
    with engine_extra():
        from daemons.engine.torch_engine import open_torch
    state = state_path(config.node.state_dir, config.node.id)
    return DecodeApp(config, partial(open_torch, state=state))


if __name__ == "__main__":
    sys.exit(main())
