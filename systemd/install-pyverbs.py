#!/usr/bin/env python3
"""Give the Python that runs this a pyverbs that fits the host's libibverbs: `make rdma` runs it with .venv's.

PyPI's own build links pyverbs with a private copy of rdma-core, and imports only on a host of that very release. So:
the distribution's python3-pyverbs where it was built for this Python, else PyPI's source, compiled here against the
host's libraries (about a minute; needs a C compiler and Python's headers). Only the folder pyverbs/ is installed.

    install-pyverbs.py [--build]    --build: compile in any case
"""

import ctypes
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SDIST = "pyverbs==59.0"
SITE_PACKAGES = Path(sysconfig.get_path("platlib"))
SUFFIX = str(sysconfig.get_config_var("EXT_SUFFIX"))
LIBRARIES = ("libibverbs.so.1", "librdmacm.so.1")

# Modules of Mellanox' and Amazon's providers are left out; they need libraries that few hosts have.
MODULES = (
    *("addr", "base", "cmid", "cq", "device", "dmabuf", "enums", "flow", "fork", "libibverbs"),
    *("libibverbs_enums", "librdmacm", "librdmacm_enums", "mem_alloc", "mr", "pd", "qp", "spec"),
    *("srq", "wq", "wr", "xrcd"),
)

# pyverbs asks rdma-core's private interface one thing, the type of a GID. Sysfs knows that too, and with this in place
# of the private header no symbol of one particular release is left.
DRIVER_HEADER = r"""
#ifndef MOONCAKE_DRIVER_H
#define MOONCAKE_DRIVER_H
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <infiniband/verbs.h>

enum ibv_gid_type_sysfs { IBV_GID_TYPE_SYSFS_IB_ROCE_V1, IBV_GID_TYPE_SYSFS_ROCE_V2 };

static inline int ibv_query_gid_type(struct ibv_context *context, uint8_t port, unsigned int index,
                                     enum ibv_gid_type_sysfs *type)
{
    char path[192], text[16] = "";
    snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/%u/gid_attrs/types/%u",
             ibv_get_device_name(context->device), port, index);
    FILE *file = fopen(path, "r");
    if (!file)
        return -1;
    char *line = fgets(text, sizeof(text), file);
    fclose(file);
    if (!line) {
        errno = EINVAL;
        return -1;
    }
    *type = strstr(line, "v2") ? IBV_GID_TYPE_SYSFS_ROCE_V2 : IBV_GID_TYPE_SYSFS_IB_ROCE_V1;
    return 0;
}
#endif
"""


def main() -> None:
    is_forced = sys.argv[1:] == ["--build"]
    version = imported_version()
    if version and not is_forced:
        say(f"pyverbs is there already ({version})")
        return
    for library in LIBRARIES:
        try:
            ctypes.CDLL(library)
        except OSError:
            sys.exit(
                f"{library} is missing: apt install libibverbs1 librdmacm1 ibverbs-providers "
                "(dnf install libibverbs librdmacm), then run make rdma again"
            )
    with tempfile.TemporaryDirectory() as work:
        is_installed = not is_forced and install_distributions(Path(work))
        if is_installed or install_built(Path(work)):
            say(f"pyverbs is installed in {SITE_PACKAGES} ({imported_version()})")
            return
    sys.exit("no pyverbs could be installed; the reasons are above")


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def imported_version() -> str:
    """What a fresh interpreter finds, proved by an import of what needs the libraries; "" when it cannot."""
    code = (
        "import pyverbs.device, pyverbs.qp, importlib.util as u;"
        "print('59 or newer' if u.find_spec('pyverbs.libibverbs_enums') else '44 to 58')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def install(folder: Path) -> bool:
    """Copy the folder into site-packages and keep it only if it imports."""
    target = SITE_PACKAGES / "pyverbs"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(folder, target)
    if imported_version():
        return True
    shutil.rmtree(target)
    say(f"the pyverbs of {folder} does not import in this Python")
    return False


def install_distributions(work: Path) -> bool:
    """python3-pyverbs: the installed one, else from the package, of which nothing else is unpacked."""
    packages = Path("/usr/lib/python3/dist-packages")
    if not (packages / "pyverbs").is_dir():
        if shutil.which("apt-get") is None:
            return False
        download = ["apt-get", "download", "-q", "python3-pyverbs"]
        done = subprocess.run(download, cwd=work, capture_output=True, text=True, check=False)
        found = list(work.glob("python3-pyverbs_*.deb"))
        if done.returncode or not found:
            say(f"the distribution's python3-pyverbs cannot be had: {done.stderr.strip()[-300:]}")
            return False
        subprocess.run(["dpkg-deb", "-x", found[0], work / "unpacked"], check=True)
        packages = work / "unpacked" / "usr/lib/python3/dist-packages"
    if not (packages / "pyverbs" / f"device{SUFFIX}").exists():
        say(f"the distribution's python3-pyverbs is not for this Python ({SUFFIX})")
        return False
    return install(packages / "pyverbs")


def install_built(work: Path) -> bool:
    compiler = os.environ.get("CC", "cc")
    if shutil.which(compiler) is None:
        say(f"there is no C compiler ({compiler}) to build pyverbs with: apt install gcc")
        return False
    say(f"building {SDIST} against the host's libibverbs, about a minute")
    tools, source = work / "tools", fetch_source(work)
    pip("install", "--target", str(tools), "cython")
    include = work / "include"
    lay_out_headers(source, include)
    output = work / "built" / "pyverbs"
    output.mkdir(parents=True)
    for path in (source / "pyverbs").glob("*.py"):
        shutil.copy(path, output)

    def build(module: str) -> None:
        pyx = source / "pyverbs" / f"{module}.pyx"
        made = work / f"{module}.c"
        environment = os.environ | {"PYTHONPATH": str(tools)}
        cython = [sys.executable, "-m", "cython", "-3", "-I", source, pyx, "-o", made]
        run([*cython], environment)
        extra = [source / "pyverbs/dmabuf_alloc_stub.c"] if module == "dmabuf" else []
        flags = ["-O2", "-fPIC", "-shared", "-w", "-fno-strict-aliasing", "-Wl,--as-needed"]
        headers = [f"-I{path}" for path in (include, source / "pyverbs", python_headers())]
        libraries = [f"-l:{library}" for library in LIBRARIES]
        target = output / f"{module}{SUFFIX}"
        run([compiler, *flags, *headers, made, *extra, "-o", target, *libraries], environment)

    present = [m for m in MODULES if (source / "pyverbs" / f"{m}.pyx").exists()]
    try:
        with ThreadPoolExecutor(os.cpu_count()) as workers:
            list(workers.map(build, present))
    except subprocess.CalledProcessError as error:
        say(f"building pyverbs failed: {error}\n{(error.stderr or '')[-2000:]}")
        return False
    return install(output)


def fetch_source(work: Path) -> Path:
    """rdma-core's source out of PyPI's package."""
    pip("download", "--no-deps", "--no-binary", "pyverbs", "--dest", str(work), SDIST)
    with tarfile.open(next(work.glob("pyverbs-*.tar.gz"))) as archive:
        archive.extractall(work / "source", filter="data")
    return next((work / "source").glob("pyverbs-*/rdma-core"))


def lay_out_headers(source: Path, include: Path) -> None:
    """As an installed rdma-core would have them; the host's own need not be there."""
    for folder, patterns in {
        "infiniband": ("libibverbs/*.h", "kernel-headers/rdma/*.h"),
        "rdma": ("librdmacm/*.h", "kernel-headers/rdma/*.h"),
        "rdma/hfi": ("kernel-headers/rdma/hfi/*.h",),
        "util": ("util/*.h",),
    }.items():
        (include / folder).mkdir(parents=True, exist_ok=True)
        for pattern in patterns:
            for path in source.glob(pattern):
                shutil.copy(path, include / folder)
    (include / "infiniband" / "driver.h").write_text(DRIVER_HEADER)


def python_headers() -> Path:
    return Path(sysconfig.get_path("include"))


def pip(*arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *arguments], check=True
    )


def run(command: list[object], environment: dict[str, str]) -> None:
    subprocess.run(
        [str(part) for part in command], env=environment, check=True, capture_output=True, text=True
    )


main()
