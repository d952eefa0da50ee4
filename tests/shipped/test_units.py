"""systemd units: valid, sandboxed, with the keys that every one of them needs."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from mcctl import config_text

UNITS = sorted((Path(__file__).parents[2] / "systemd").glob("*.service"))
needs_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)
MAX_EXPOSURE_TENTHS = 20
SUFFIXES = (".service", ".target", ".slice", ".mount")


@pytest.fixture
def stubbed(tmp_path: Path, checkout: Path) -> Path:
    """Copies whose programs exist here."""
    for unit in (checkout / "systemd").iterdir():
        text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", unit.read_text(), flags=re.M)
        (tmp_path / unit.name).write_text(text)
    return tmp_path


@needs_analyze
def test_units_are_valid(stubbed: Path) -> None:
    names = [f"./{path.name}" for path in stubbed.iterdir() if path.suffix in SUFFIXES]
    done = _analyze(["verify", "--man=no", "--recursive-errors=one", *names], stubbed)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_analyze
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_unit_is_sandboxed(unit: Path, stubbed: Path) -> None:
    arguments = ["security", "--offline=true", f"--threshold={MAX_EXPOSURE_TENTHS}", "--no-pager"]
    done = _analyze([*arguments, f"./{unit.name}"], stubbed)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_unit_has_what_each_needs(unit: Path) -> None:
    text = unit.read_text()
    process = unit.stem.rstrip("@")
    for line in (
        f"Documentation=man:{process}(8) man:{process}.toml(5)",
        "LimitCORE=0",
        f"LoadCredential={process}{'-%i' if '@' in unit.stem else ''}.key",
        "PartOf=mooncake.target",
        "ProtectSystem=strict",
        "Restart=on-failure",
        "RestartPreventExitStatus=78",
        "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
        "Slice=mooncake.slice",
        "StartLimitIntervalSec=0",
        "Type=notify",
        "User=mooncake",
        "WantedBy=mooncake.target",
    ):
        assert f"\n{line}\n" in text, line
    assert "\nWatchdogSec=" in text
    assert f"/bin/{process} --config /etc/mooncake/{process}" in text


@pytest.mark.parametrize(
    ("process", "section"),
    [
        ("mc-cachenode", "copy"),
        ("mc-prefill", "prefill"),
        ("mc-decode", "decode"),
        ("mc-gateway", "http"),
    ],
)
def test_unit_waits_longer_than_its_daemon_drains(
    process: str, section: str, checkout: Path
) -> None:
    """By default; whoever raises `drain_s` is told by its page to raise the other too."""
    text = (checkout / "systemd" / f"{process}@.service").read_text()
    found = re.search(r"^TimeoutStopSec=(\d+)s$", text, flags=re.M)
    assert found
    (key,) = [
        key
        for table in config_text.tables(config_text.PROCESSES[process])
        for key in table.keys
        if (table.name, key.name) == (section, "drain_s")
    ]
    assert float(found[1]) >= 1.5 * float(key.default_text)


def _analyze(arguments: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
