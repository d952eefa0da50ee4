"""The machine as the tests see it: where things are on it, commands run on it, and what is told of it at the end."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE, WHEELHOUSE, SCRIPTS = "/mnt/source", "/mnt/wheelhouse", "/mnt/scripts"
LENT_WHEELHOUSE = "/mnt/lent"
"""See lent.py."""
ENGINE = "/mnt/engine"
"""The packages of the Python that runs the tests: the machine takes torch from there, and nothing else."""
REMARKS: list[str] = []
"""Shown when all tests have run, also where all went well."""
_ACCOUNTS = {"etc/.pwd.lock"} | {
    f"etc/{name}{end}" for name in ("passwd", "group", "shadow", "gshadow") for end in ("", "-")
}
"""Written anew with every user that comes or goes."""
_ENVIRONMENT = {
    "HOME": "/root",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
}


@dataclass(frozen=True, slots=True)
class Machine:
    """`run` is a command as root on it; paths under `root` are its files."""

    pid: int

    @property
    def root(self) -> Path:
        return Path(f"/proc/{self.pid}/root")

    def inside(self, *words: str) -> list[str]:
        """A command of this host's that runs these words there."""
        namespaces = ["--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup"]
        return ["nsenter", "--target", str(self.pid), *namespaces, *words]

    def run(
        self, *words: str, fails: bool = False, timeout_s: float = 500.0
    ) -> subprocess.CompletedProcess[str]:
        """`fails`: it may; else a status that is not 0 fails the test."""
        done = subprocess.run(
            self.inside(*words),
            capture_output=True,
            text=True,
            check=False,
            env=_ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            timeout=timeout_s,
        )
        if done.returncode and not fails:
            tail = self.run("journalctl", "--no-pager", "--lines", "40", fails=True).stdout
            pytest.fail(f"{words}: {done.stdout}{done.stderr}\n{tail}")
        return done

    def begin(self, *words: str, out: Path) -> "subprocess.Popen[bytes]":
        """A command as `run` has it, that goes on; what it says is in the file."""
        with out.open("wb") as file:
            return subprocess.Popen(
                self.inside(*words), stdin=subprocess.DEVNULL, stdout=file, env=_ENVIRONMENT
            )

    def show(self, unit: str, name: str) -> str:
        return self.run("systemctl", "show", "--value", "--property", name, unit).stdout.strip()

    def journal(self, unit: str) -> str:
        return self.run("journalctl", "--unit", unit, "--output", "cat", "--no-pager").stdout

    def files(self) -> set[str]:
        """All where install.sh may write; empty folders that are left do no harm."""
        found: set[str] = set()
        for top in ("etc", "opt", "usr/local", "usr/lib/systemd", "var/lib"):
            for path in (self.root / top).rglob("*"):
                if path.is_symlink() or not path.is_dir():
                    found.add(str(path.relative_to(self.root)))
        return found - _ACCOUNTS

    def write(self, path: str, text: str) -> None:
        """Readable for the daemons' user, as what install.sh puts in /etc/mooncake."""
        file = self.root / path.lstrip("/")
        file.write_text(text)
        file.chmod(0o644)


def install(machine: Machine, *words: str, fails: bool = False) -> subprocess.CompletedProcess[str]:
    script = f"{SOURCE}/systemd/install.sh"
    return machine.run(script, *words, fails=fails)


def install_offline(machine: Machine, *words: str, wheelhouse: str = WHEELHOUSE) -> str:
    """From the folder that `make wheelhouse` filled, by the script that lies in it."""
    return machine.run(f"{wheelhouse}/systemd/install.sh", "--no-engine", *words).stderr
