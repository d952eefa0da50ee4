"""One name, five places: entry point, package, unit, config, manual page."""

import tomllib
from pathlib import Path

import pytest

from mcctl.config_text import PROCESSES

TEMPLATES = {"mc-cachenode", "mc-prefill", "mc-decode", "mc-gateway"}


@pytest.mark.parametrize("process", sorted(PROCESSES))
def test_process_has_its_five_places(process: str, checkout: Path) -> None:
    package = process.replace("-", "_")
    scripts = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts[process] == f"daemons.{package}.__main__:main"
    unit = f"{process}{'@' if process in TEMPLATES else ''}.service"
    for place in (
        f"daemons/{package}/__main__.py",
        f"systemd/{unit}",
        f"configs/{process}.toml",
        f"man/{process}.8",
        f"man/{process}.toml.5",
    ):
        assert (checkout / place).is_file(), place


def test_nothing_is_shipped_for_a_process_that_does_not_exist(checkout: Path) -> None:
    assert {path.stem for path in (checkout / "configs").glob("*.toml")} == set(PROCESSES)
    units = {path.stem.rstrip("@") for path in (checkout / "systemd").glob("*.service")}
    assert units == set(PROCESSES)


def test_top_level_holds_only_the_agreed_folders(checkout: Path) -> None:
    folders = {
        path.name
        for path in checkout.iterdir()
        if path.is_dir() and not path.name.startswith(".") and not path.name.endswith(".egg-info")
    }
    assert folders - {"build", "dist"} == {"mcctl", "daemons", "systemd", "configs", "tests", "man"}


def test_no_link_makes_a_walk_through_the_checkout_endless(checkout: Path) -> None:
    """Builds of the package follow links to folders: one to a folder above goes round for ever."""
    tops = ("mcctl", "daemons", "systemd", "configs", "tests", "man")
    links = [path for top in tops for path in (checkout / top).rglob("*") if path.is_symlink()]
    assert not [link for link in links if link.is_dir()]
