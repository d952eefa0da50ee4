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
    "pin": pins.pin,
    "unpin": pins.unpin,
    "put": objects.put,
    "get": objects.get,
    "rm": objects.remove,
    "export": archives.export,
    "import": archives.import_,
    "replicate": replicas.replicate,
    "move": replicas.move,
    "list": blocks.list_blocks,
    "show": blocks.show,
    "stat": stat.stat,
    "locate": locate.locate,
    "clear": clear.clear,
    "flush": flush.flush,
}
for _name, _verb in _VERBS.items():
    app.command(_name)(_verb)
