"""How the operator comes onto the tests' hosts: an ssh server on each, as Debian has it, and the operator's own ssh.

Where there is no such server, an ssh of two lines enters the host's namespaces, and the remarks say so.
"""

import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from kit.daemon import wait_for
from systemd.cluster import WAIT_S
from systemd.machine import REMARKS, Machine

_LAYER = Path(__file__).parent / "layer.sh"
_SERVER = """
AuthorizedKeysFile /run/sshd/authorized
HostKey /run/sshd/key
PasswordAuthentication no
PermitRootLogin prohibit-password
PidFile none
"""
_START = """
id sshd >/dev/null 2>&1 || useradd --system --home-dir /run/sshd --shell /usr/sbin/nologin sshd
umask 077
mkdir -p /run/sshd
cat >/run/sshd/config <<<"$1"
cat >/run/sshd/authorized <<<"$2"
ssh-keygen -q -t ed25519 -N '' -f /run/sshd/key
exec systemd-run --quiet --unit sshd /usr/sbin/sshd -D -f /run/sshd/config
"""
_CLIENT = """
Host *
IdentityFile {folder}/.ssh/id
StrictHostKeyChecking accept-new
UserKnownHostsFile {folder}/.ssh/known
ControlPath {folder}/.ssh/%h
LogLevel ERROR
"""
_ENTER = r"""#!/bin/bash
# ssh [-n] root@ADDRESS COMMAND...: as root on that machine, by its shell
[ "$1" != -n ] || { exec </dev/null; shift; }
address=${1#root@}
shift
exec nsenter --target "$(cat "${0%/*}/../.ssh/$address")" --mount --uts --ipc --net --pid --cgroup -- \
    env --ignore-environment HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin bash -c "$*"
"""


def layer_folder() -> Path | None:
    """What lies over this host's root on theirs; None where it cannot be had, which the remarks say."""
    made = subprocess.run([_LAYER], capture_output=True, text=True, check=False)
    if made.returncode:
        REMARKS.append(made.stderr.strip().rpartition("\n")[2])
        return None
    return Path(made.stdout.strip())


def let_in(operator: Sequence[str], folder: Path, machines: Mapping[str, Machine]) -> ExitStack:
    """Puts an ssh into the folder's bin that leads to them, from where the words of `operator` lead; what it needs ends
    with what is returned.
    """
    (folder / ".ssh").mkdir(mode=0o700)
    stack = ExitStack()
    if not all((each.root / "usr/sbin/sshd").exists() for each in machines.values()):
        REMARKS.append("no ssh server is installed: mc-deploy(7) was followed without one")
        _write_program(folder / "bin" / "ssh", _ENTER)
        for address, machine in machines.items():
            (folder / ".ssh" / address).write_text(str(machine.pid))
        return stack
    own = folder / ".ssh" / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(own)], check=True)
    (folder / ".ssh" / "config").write_text(_CLIENT.format(folder=folder))
    ssh = ["ssh", "-F", str(folder / ".ssh" / "config")]
    _write_program(
        folder / "bin" / "ssh", f'#!/bin/sh\nexec {shutil.which("ssh")} {" ".join(ssh[1:])} "$@"\n'
    )
    public = own.with_suffix(".pub").read_text()
    for address, machine in machines.items():
        machine.run("bash", "-c", _START, "bash", _SERVER, public)
        stack.enter_context(_connected([*operator, *ssh], address, folder / ".ssh" / address))
    return stack


def has_server(folder: Path) -> bool:
    """Whether ssh is one, and leads to a server."""
    return (folder / ".ssh" / "config").exists()


def _write_program(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o755)


@contextmanager
def _connected(ssh: Sequence[str], address: str, control: Path) -> Iterator[None]:
    """All commands share one connection: else each would exchange keys."""
    words = [*ssh, "-M", "-N", "-o", "ConnectionAttempts=20", f"root@{address}"]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL)
    try:
        wait_for(
            lambda: control.exists() or process.poll() is not None, WAIT_S, f"ssh to {address}"
        )
        assert process.poll() is None, f"ssh to {address} ended"
        yield
    finally:
        process.kill()
        process.wait()
