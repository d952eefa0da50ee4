"""What a reload names: exactly the keys that differ."""

from daemons.config.changes import changed_keys
from daemons.config.mc_master import ConductorSection, MasterConfig


def test_only_keys_that_differ_are_named_with_their_section() -> None:
    changed = MasterConfig(conductor=ConductorSection(seed=3, request_log=7))
    assert list(changed_keys(MasterConfig(), changed)) == [
        "conductor.seed",
        "conductor.request_log",
    ]
    assert list(changed_keys(changed, changed)) == []
