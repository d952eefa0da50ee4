"""mcctl bench: measure a cluster or a data path, beside a limit measured in the same run. A file for each verb."""

from mcctl.commands import new_app
from mcctl.commands.bench.conductor import conductor
from mcctl.commands.bench.load import load
from mcctl.commands.bench.master import master
from mcctl.commands.bench.recover import recover
from mcctl.commands.bench.serve import serve
from mcctl.commands.bench.ssd import ssd
from mcctl.commands.bench.store import store
from mcctl.commands.bench.transfer import transfer

app = new_app()


@app.callback()
def _noun() -> None:
    """Measure a cluster, or a data path."""


for _verb in (serve, load, transfer, conductor, master, store, ssd, recover):
    app.command()(_verb)
