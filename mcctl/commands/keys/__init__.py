"""mcctl keys: who may connect to a cluster's daemons. Works on files; the master reads its list again by itself."""

from mcctl.commands import new_app
from mcctl.commands.keys import listing, making

app = new_app()


@app.callback()
def _noun() -> None:
    """Keys of daemons and operators: make, authorize, revoke."""


app.command()(making.generate)
app.command("list")(listing.list_keys)
app.command()(listing.authorize)
app.command()(listing.revoke)
app.command()(making.rotate)
