"""A wheelhouse that lends what the Python of the tests has, all but our own wheel: each machine would unpack and
compile the others for a quarter of a minute. test_install.py installs from a real one.
"""

import importlib.metadata
import shutil
import zipfile
from pathlib import Path

from systemd.machine import ENGINE

_OURS = "mooncake_mc"
_ENGINE_WHEELS = ("torch", "safetensors", "gguf")


def lend(target: Path, wheelhouse: Path) -> None:
    """Makes `target` of one without an engine, and lends the engine too."""
    shutil.copytree(wheelhouse, target)
    for name in _ENGINE_WHEELS:
        _write_wheel(target, name, importlib.metadata.version(name))
    for wheel in wheelhouse.glob("*.whl"):
        name = wheel.name.partition("-")[0]
        if name != _OURS and (version := _version(name)):
            (target / wheel.name).unlink()
            _write_wheel(target, name, version)


def _version(name: str) -> str | None:
    """None where the Python of the tests lacks it: such a wheel stays as it is."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _write_wheel(target: Path, name: str, version: str) -> None:
    stem = f"{name}-{version}"
    about = f"{stem}.dist-info"
    files = {
        f"zz_{name}.pth": f"{ENGINE}\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = f"{about}/RECORD"
    files[record] = "".join(f"{file},,\n" for file in (*files, record))
    with zipfile.ZipFile(target / f"{stem}-py3-none-any.whl", "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
