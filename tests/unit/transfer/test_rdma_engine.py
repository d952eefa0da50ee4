"""An engine that is told to use RDMA where there is none: another transport, or a refusal."""

import pytest

from daemons.core.errors import ConfigError
from daemons.transfer import TransferEngine
from daemons.transfer.transports.rdma import RdmaUnavailable, transport


@pytest.fixture(autouse=True)
def _no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_devices(_: object) -> list[object]:
        raise RdmaUnavailable("this host has no RDMA device")

    monkeypatch.setattr(transport, "open_devices", open_devices)


def test_tcp_is_used_instead_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    engine = TransferEngine(transports=("rdma", "tcp"))
    try:
        assert engine.address.rdma == ""
        assert engine.address.tcp
        region = engine.register(bytearray(100))
        engine.deregister(region)
    finally:
        engine.close()
    assert "this host has no RDMA device" in caplog.text


def test_config_that_leaves_only_rdma_is_refused() -> None:
    with pytest.raises(ConfigError, match="no RDMA device"):
        TransferEngine(transports=("rdma",))
