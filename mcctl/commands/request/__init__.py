"""mcctl request: send a prompt and watch the answer, or see what became of recent ones."""

from mcctl.commands import new_app
from mcctl.commands.request import explain, recent, send

app = new_app()

app.command()(send.send)
app.command("list")(recent.list_requests)
app.command()(recent.show)
app.command()(explain.explain)
