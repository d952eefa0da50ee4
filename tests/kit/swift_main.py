"""OpenStack Swift with its S3 API as one process: proxy, account, container and object servers of one disk on loopback.

Run as `python swift_main.py DIRECTORY PORT SECRET`, in a process of its own, for eventlet patches all of it. The same
directory has the same objects again. One process instead of four starts in a second and shares its imports.
"""

import eventlet

eventlet.monkey_patch()

import sys  # noqa: E402  # what is imported before the patch is not patched
import time  # noqa: E402
from pathlib import Path  # noqa: E402

from eventlet import wsgi  # noqa: E402
from swift.common import utils  # noqa: E402
from swift.common import wsgi as swift_wsgi  # noqa: E402
from swift.common.ring import RingBuilder  # noqa: E402

_KINDS = ("account", "container", "object")
_BACKEND = """
[DEFAULT]
swift_dir = {directory}
devices = {directory}/devices
mount_check = false
[app:main]
use = egg:swift#{kind}
"""
_PROXY = """
[DEFAULT]
swift_dir = {directory}
[pipeline:main]
pipeline = catch_errors s3api tempauth bulk slo proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:s3api]
use = egg:swift#s3api
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = {secret} .admin
[filter:bulk]
use = egg:swift#bulk
[filter:slo]
use = egg:swift#slo
"""


def main() -> None:
    directory, port = Path(sys.argv[1]), int(sys.argv[2])
    utils.HASH_PATH_SUFFIX = b"mooncake"
    (directory / "devices" / "disk").mkdir(parents=True, exist_ok=True)
    backends = [eventlet.listen(("127.0.0.1", 0)) for _ in _KINDS]
    for kind, backend in zip(_KINDS, backends, strict=True):
        _make_ring(directory / f"{kind}.ring.gz", backend.getsockname()[1])
        _serve(directory, kind, _BACKEND.format(directory=directory, kind=kind), backend)
    front = eventlet.listen(("127.0.0.1", port))
    _serve(directory, "proxy", _PROXY.format(directory=directory, secret=sys.argv[3]), front)
    print("ready", flush=True)  # noqa: T201  # whoever started this waits for it
    while True:
        time.sleep(60)


def _make_ring(path: Path, port: int) -> None:
    """One partition, one replica, one disk."""
    builder = RingBuilder(0, 1, 0)
    disk = {"ip": "127.0.0.1", "port": port, "device": "disk", "weight": 1.0}
    builder.add_dev({**disk, "region": 1, "zone": 1})
    builder.rebalance(seed="1")
    builder.get_ring().save(str(path))


def _serve(directory: Path, kind: str, text: str, listener: object) -> None:
    conf = directory / f"{kind}.conf"
    conf.write_text(text)
    app = swift_wsgi.loadapp(str(conf), global_conf={"log_name": kind})
    eventlet.spawn(
        wsgi.server,
        listener,
        app,
        swift_wsgi.NullLogger(),
        protocol=swift_wsgi.SwiftHttpProtocol,
        capitalize_response_headers=False,
    )


main()
