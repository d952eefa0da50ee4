"""The machines of mc-deploy(7), once it was followed: who is who, and what is asked of them."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kit.daemon import wait_for
from kit.deploy_page import commands, machines
from systemd.cluster import WAIT_S, Api, main_pid
from systemd.hosts import ADDRESSES, Hosts
from systemd.machine import REMARKS, Machine

MASTER, A, B = ADDRESSES
VALUES = {
    "MASTER": MASTER,
    "CACHE": f'"{A} {B}"',
    "PREFILL": f'"{A} {B}"',
    "DECODE": f'"{A} {B}"',
    "MODEL": "~/tiny",
    "POOL": "64MiB",
    "DEVICE": "cpu",
    "KV": "64MiB",
}
URL = f"http://{MASTER}:8000"
INSTANCES = ("mc-cachenode@a.service", "mc-prefill@a.service", "mc-decode@a.service")
UNITS = {MASTER: ("mc-master.service", "mc-gateway@a.service"), A: INSTANCES, B: INSTANCES}


def follow(hosts: Hosts, *sections: str) -> str:
    return hosts.type(machines(VALUES) + commands(*sections))


def api_of(hosts: Hosts, tenant: str) -> Api:
    given = ("mcctl", "tenant", "key", tenant, "--file", "/etc/mooncake/tenants.toml")
    return Api(URL, hosts.machines[MASTER].run(*given).stdout.strip())


def current(hosts: Hosts, address: str) -> str:
    return (hosts.machines[address].root / "opt/mooncake/current").readlink().name


def runs_from(hosts: Hosts, address: str, unit: str) -> str:
    """The version."""
    machine = hosts.machines[address]
    ran = machine.run("cat", f"/proc/{main_pid(machine, unit)}/cmdline").stdout
    return ran.split("/releases/")[1].split("/")[0]


def expect_shown(machine: Machine, lines: list[str], what: str, folder: Path) -> None:
    """Of commands that go on until somebody ends them."""
    processes = {}
    for number, line in enumerate(lines):
        words = ("bash", "-c", f"echo $$ >/run/shown-{number} && exec {line}")
        processes[number] = machine.begin(*words, out=folder / f"shown-{number}")
    for number, process in processes.items():
        out = folder / f"shown-{number}"
        wait_for(lambda out=out: what in out.read_text(), WAIT_S, lines[number])  # type: ignore[misc]
        machine.run("kill", (machine.root / f"run/shown-{number}").read_text().strip())
        process.wait(WAIT_S)


def mounted(host: Machine) -> str:
    """Where segments lie, as the kernel says it; empty: nothing is mounted there."""
    mounts = host.run("cat", "/proc/mounts").stdout
    return "".join(re.findall(r"^\S+ /var/lib/mooncake/segments .*$", mounts, re.M))


@contextmanager
def huge_pages(host: Machine, num: int) -> Iterator[int]:
    """How many the kernel has with `num` more, which the host may set too; 0 where it gives none."""
    setting = Path("/proc/sys/vm/nr_hugepages")
    before = int(setting.read_text())
    if not _are_set(setting, before + num):
        REMARKS.append(f"the kernel gives no {num} huge pages: a hugetlbfs was not tried")
        yield 0
        return
    try:
        host.run(
            "bash", "-c", f"mount --bind {setting} {setting} && mount -o remount,bind,rw {setting}"
        )
        yield before + num
    finally:
        _are_set(setting, before)


def _are_set(setting: Path, num: int) -> bool:
    """All, or as many as before: it gives what it has in one piece."""
    before = setting.read_text()
    try:
        setting.write_text(str(num))
    except OSError:
        return False
    if int(setting.read_text()) >= num:
        return True
    setting.write_text(before)
    return False
