"""The one door to pyverbs: imported on first use, constants by name, and a sentence for each way it can be missing.

Serves pyverbs 44 to 64. Constants are read from the enum classes, the only form all of them have. Nothing in pyverbs
releases the GIL, so no caller may use a call that blocks.
"""

import functools
import importlib
import logging
from types import SimpleNamespace
from typing import Any

from daemons.core.errors import Unavailable

_ENUMS = (
    "ibv_access_flags",
    "ibv_mtu",
    "ibv_port_state",
    "ibv_qp_type",
    "ibv_send_flags",
    "ibv_wc_status",
    "ibv_wr_opcode",
)
_CLASSES = {
    "pyverbs.addr": ("AHAttr", "GID", "GlobalRoute"),
    "pyverbs.cq": ("CQ", "CompChannel"),
    "pyverbs.device": ("Context", "get_device_list"),
    "pyverbs.mr": ("MR",),
    "pyverbs.pd": ("PD",),
    "pyverbs.pyverbs_error": ("PyverbsError",),
    "pyverbs.qp": ("QP", "QPAttr", "QPCap", "QPInitAttr"),
    "pyverbs.wr": ("SGE", "SendWR"),
}


class RdmaUnavailable(Unavailable):
    """This host or process cannot use RDMA; the message says what is missing and what provides it."""


@functools.cache
def load() -> Any:
    """pyverbs' classes and constants in one namespace; raises RdmaUnavailable.

    Importing pyverbs configures the root logger; that is undone, as the process owns its logging.
    """
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        return _load()
    except ImportError as error:
        raise RdmaUnavailable(_why_not_imported(error)) from error
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def _load() -> SimpleNamespace:
    found = SimpleNamespace()
    for module_name, names in _CLASSES.items():
        module = importlib.import_module(module_name)
        for name in names:
            setattr(found, name, getattr(module, name))
    found.DmaBufMR = getattr(importlib.import_module("pyverbs.mr"), "DmaBufMR", None)
    # pyverbs.enums became pyverbs.libibverbs_enums; 59 has both.
    try:
        enums = importlib.import_module("pyverbs.libibverbs_enums")
    except ModuleNotFoundError:
        enums = importlib.import_module("pyverbs.enums")
    for name in _ENUMS:
        for member in getattr(enums, name):
            setattr(found, member.name, int(member))
    found.status_names = {int(member): member.name for member in enums.ibv_wc_status}
    return found


def _why_not_imported(error: ImportError) -> str:
    text = str(error)
    if isinstance(error, ModuleNotFoundError):
        return "pyverbs is not installed: run `make rdma`, or install the distribution's python3-pyverbs"
    if "IBVERBS_PRIVATE" in text:
        return f"pyverbs was built for another rdma-core ({text}): run `make rdma`"
    if "libibverbs" in text or "librdmacm" in text:
        return (
            f"a library is missing ({text}): apt install libibverbs1 librdmacm1 ibverbs-providers"
        )
    return f"pyverbs cannot be imported ({text}): run `make rdma`"
