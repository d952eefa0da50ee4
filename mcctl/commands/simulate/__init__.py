"""mcctl simulate: replay a trace, or made-up traffic, against a cluster that need not exist. A file for each verb."""

from mcctl.commands import new_app
from mcctl.commands.simulate import compare, fit, plan, reproduce, run

app = new_app()


@app.callback()
def _noun() -> None:
    """Replay traffic against a modelled cluster; the Conductor and the directory are the live ones."""


for _verb in (plan.plan, run.run, compare.compare, reproduce.reproduce, fit.fit):
    app.command()(_verb)
