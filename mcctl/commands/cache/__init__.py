"""mcctl cache: what is in the pool, and what becomes of it. A file for each verb, or for a few that belong together."""

from collections.abc import Callable
from typing import Final

from mcctl.commands import new_app
from mcctl.commands.cache import (
    archives,
    blocks,
    clear,
    flush,
    locate,
    objects,
    pins,
    replicas,
    stat,
)

app = new_app()

_VERBS: Final[dict[str, Callable[..., object]]] = {
    "list": blocks.list_blocks,
    "locate": locate.locate,
    "flush": flush.flush,
    "show": blocks.show,
    "stat": stat.stat,
    "pin": pins.pin,
    "unpin": pins.unpin,
    "replicate": replicas.replicate,
    "move": replicas.move,
    "put": objects.put,
    "get": objects.get,
    "rm": objects.remove,
    "export": archives.export,
    "import": archives.import_,
    "clear": clear.clear,
}
"""The first three are the examples of `mcctl cache --help`."""
for _name, _verb in _VERBS.items():
    app.command(_name)(_verb)
