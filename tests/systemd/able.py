"""Whether this machine can run a systemd of its own in namespaces. Prints why not; nothing where it can."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

PYTHON = "/usr/bin/python3"
"""What install.sh takes on the machine; the wheels are for the Python that runs this."""

_TOOLS = [
    "systemctl",
    "dbus-daemon",
    "unshare",
    "nsenter",
    "setpriv",
    "pivot_root",
    "ip",
    "make",
    "curl",
]
_OVERLAY = """
folder=$(mktemp -d) && mount -t tmpfs disk "$folder" && mkdir "$folder"/{changes,work,root} &&
mount -t overlay host -o "lowerdir=/,upperdir=$folder/changes,workdir=$folder/work" "$folder/root"
status=$?
umount --lazy "$folder" && rmdir "$folder"
exit $status
"""


def why_not() -> str:
    if os.geteuid() != 0:
        return "namespaces with a systemd need root"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"not installed: {' '.join(missing)}"
    if not Path("/usr/lib/systemd/systemd").exists():
        return "systemd is not installed"
    if own_cgroup() is None:
        return "no cgroup2 hierarchy is mounted"
    return _why_no_python() or _why_no_overlay()


def own_cgroup() -> Path | None:
    """The cgroup that this process is in."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        if kind == "cgroup2":
            own = [x for x in Path("/proc/self/cgroup").read_text().split() if x.startswith("0::")]
            return Path(where) / own[0].removeprefix("0::").lstrip("/")
    return None


def _why_no_python() -> str:
    code = "import ensurepip, venv, sys; print(*sys.version_info[:2])"
    asked = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=False)
    if asked.returncode:
        return f"{PYTHON} has no venv module"
    ours = f"{sys.version_info.major} {sys.version_info.minor}"
    same = asked.stdout.strip() == ours
    return "" if same else f"{PYTHON} is of another release than {sys.executable}"


def _why_no_overlay() -> str:
    words = ["unshare", "--mount", "--propagation", "private", "bash", "-c", _OVERLAY]
    tried = subprocess.run(words, capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else f"no overlay of /: {tried.stderr.strip()}"


if __name__ == "__main__":
    sys.stdout.write(why_not())
