"""install.sh on a machine with a real systemd and no network.

All files of this folder share one machine, and run in this order: each test goes on from what the one before left.
"""

import shutil

from systemd.cluster import DECODE, GATEWAY, MASTER, NODE_A, PREFILL
from systemd.machine import LENT_WHEELHOUSE, WHEELHOUSE, Machine, install, install_offline

PAGE = "/man/man1/mcctl.1"
"""/usr/local/man is a link on some."""
_TYPED = "_TYPER_COMPLETE_ARGS=mcctl cluster re"
COMPLETIONS = {
    "bash": (
        "share/bash-completion/completions/mcctl",
        "COMP_WORDS=mcctl cluster re",
        "COMP_CWORD=2",
    ),
    "zsh": ("share/zsh/site-functions/_mcctl", _TYPED),
    "fish": (
        "share/fish/vendor_completions.d/mcctl.fish",
        _TYPED,
        "_TYPER_COMPLETE_FISH_ACTION=get-args",
    ),
}
"""Where each shell looks, and what its script asks with."""


def test_what_is_wrong_is_said_before_anything_changes(machine: Machine, before: set[str]) -> None:
    unknown = install(machine, "--colour", fails=True)
    assert (unknown.returncode, "unknown argument --colour" in unknown.stderr) == (2, True)
    no_torch = install(machine, "--wheelhouse", WHEELHOUSE, fails=True)
    assert (no_torch.returncode, "--no-engine" in no_torch.stderr) == (3, True)
    in_home = install(machine, "--no-engine", "--prefix", "/root/mooncake", fails=True)
    assert (in_home.returncode, "choose another --prefix" in in_home.stderr) == (3, True)
    no_python = install(machine, "--no-engine", "--python", "/bin/true/no", fails=True)
    assert (no_python.returncode, "no Python fits" in no_python.stderr) == (3, True)
    dry = install(machine, "--no-engine", "--wheelhouse", WHEELHOUSE, "--dry-run")
    assert f"would write: /usr/local/lib/systemd/system/{MASTER}" in dry.stdout
    assert machine.files() == before


def test_another_prefix_is_everywhere_and_purge_leaves_nothing(
    machine: Machine, before: set[str]
) -> None:
    prefix = "/srv/mooncake"
    install_offline(machine, "--prefix", prefix, wheelhouse=LENT_WHEELHOUSE)
    assert not (machine.root / "opt/mooncake").exists()
    machine.run("systemctl", "start", MASTER)
    started = machine.run("systemctl", "show", "--property", "ExecStart", MASTER).stdout
    assert f"{prefix}/bin/mc-master" in started
    assert machine.run("mcctl", "node", "list", "--output", "json").stdout
    install(machine, "--uninstall", "--prefix", prefix)
    assert machine.show(MASTER, "ActiveState") == "inactive"
    assert not (machine.root / prefix.lstrip("/")).exists()
    kept = ("etc/mooncake/", "var/lib/mooncake/")
    left = machine.files() - before
    assert left == {path for path in left if path.startswith(kept)}
    assert "etc/mooncake/mc-master.toml" in left
    assert "nothing is installed" in install(machine, "--uninstall", "--prefix", prefix).stderr
    install(machine, "--uninstall", "--purge", "--prefix", prefix)
    assert machine.files() == before
    assert not (machine.root / "var/lib/mooncake").exists()
    assert not machine.run("getent", "passwd", "mooncake", fails=True).stdout


def test_it_installs_without_a_network(machine: Machine) -> None:
    install_offline(machine)
    assert machine.run("mcctl", "--version").stdout.strip()
    local = machine.root / "usr/local"
    assert (local / "share/man/man8/mc-cachenode.8").is_file()
    if shutil.which("man"):
        assert machine.run("man", "--where", "mcctl").stdout.strip().endswith(PAGE)
    for shell, (file, *given) in COMPLETIONS.items():
        completes = f"_MCCTL_COMPLETE=complete_{shell}"
        assert completes in (local / file).read_text()
        assert "restart" in machine.run("env", completes, *given, "mcctl").stdout
    assert (local / "share/mooncake/grafana-dashboard.json").is_file()
    config = (machine.root / "etc/mooncake/mc-master.toml").stat()
    assert (config.st_mode & 0o777, config.st_uid) == (0o640, 0)
    analyzed = machine.run(
        *("systemd-analyze", "verify", "--man=no", "--recursive-errors=one"),
        *(MASTER, NODE_A, PREFILL, DECODE, GATEWAY, "mooncake.target"),
        fails=True,
    )
    # mc-prefill and mc-decode are there without torch, too.
    assert analyzed.returncode == 0, analyzed.stderr


def test_again_changes_nothing_and_what_was_edited_stays(machine: Machine) -> None:
    edited = machine.root / "etc/mooncake/mc-decode.toml"
    shipped = machine.root / "opt/mooncake/shipped/mc-decode.toml"
    default = edited.read_text()
    edited.write_text(default + "# mine\n")
    installed = machine.files()
    said = install_offline(machine)
    assert "is there already" in said
    assert "mc-decode.toml" not in said, "the default is what it was"
    assert machine.files() == installed
    shipped.write_text("# as an earlier version had it\n")
    assert "the new defaults are beside it" in install_offline(machine)
    assert edited.read_text() == default + "# mine\n"
    assert edited.with_name("mc-decode.toml.new").read_text() == default
    assert "mc-decode.toml" not in install_offline(machine), "it is said once"


def test_failed_upgrade_leaves_the_earlier_version(machine: Machine) -> None:
    current = (machine.root / "opt/mooncake/current").readlink()
    machine.run("mkdir", "/run/broken")
    machine.run("bash", "-c", f"cp {WHEELHOUSE}/mooncake_mc-*.whl /run/broken")
    failed = install(machine, "--no-engine", "--wheelhouse", "/run/broken", fails=True)
    assert (failed.returncode, "is unchanged" in failed.stderr) == (1, True)
    assert (machine.root / "opt/mooncake/current").readlink() == current
    assert len(list((machine.root / "opt/mooncake/releases").iterdir())) == 1
    assert machine.run("mcctl", "--version").stdout
