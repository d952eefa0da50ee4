"""mcctl tenant: who may use the API of gateways, how much, and what was used. Files, which gateways read again; what a
tenant may hold in the pool is the master's.
"""

from mcctl.commands import new_app
from mcctl.commands.tenant import keys, limits, usage

app = new_app()


@app.callback()
def _noun() -> None:
    """Tenants of gateways: API keys, limits, usage."""


app.command()(limits.add)
app.command()(keys.key)
app.command()(limits.quota)
app.command("list")(limits.list_tenants)
app.command()(usage.usage)
app.command()(usage.price)
