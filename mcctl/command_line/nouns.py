"""The nouns and plain verbs of mcctl. Help and completion see a table; what a noun does is imported when it is used."""

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import typer
import typer.core

from mcctl import interrupts, watching
from mcctl.command_line import complaints
from mcctl.command_line.global_flags import (
    GLOBALS,
    OF_WATCHING,
    as_shared,
    let_show_schema,
    let_watch,
)
from mcctl.numbers import with_known_numbers

_SHOWN_EXAMPLES: Final = 3


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """A noun or verb in `mcctl.commands`, with the line that `mcctl --help` shows for it."""

    module: str
    help: str


COMMANDS: Final = {
    "quickstart": LazyCommand("quickstart", "Run real chat traffic, show what the cache did."),
    "cluster": LazyCommand("cluster", "Keep a cluster on this host: up, down, status."),
    "status": LazyCommand("status", "One look at the cluster: nodes, pool, requests."),
    "top": LazyCommand("top", "Watch the cluster work: nodes, hit ratio, TTFT, requests."),
    "topology": LazyCommand(
        "topology", "Cluster tree and data paths: show, discover, check, probe."
    ),
    "node": LazyCommand("node", "The processes that joined: list, show, drain, undrain, remove."),
    "segment": LazyCommand("segment", "Memory that cache nodes lend: list, add, remove."),
    "cache": LazyCommand(
        "cache", "KV blocks in the pool: list, show, locate, pin, replicate, move, flush, clear."
    ),
    "request": LazyCommand("request", "Send a prompt; list, show and explain recent requests."),
    "wait": LazyCommand("wait", "Until the cluster is ready, or a node drained."),
    "events": LazyCommand("events", "Follow blocks and nodes as they come and go."),
    "logs": LazyCommand("logs", "What daemons said: a local cluster's, or this host's units."),
    "service": LazyCommand("service", "Units of this host: list, start, stop, restart, logs."),
    "model": LazyCommand("model", "Models on this host: fetch, list, convert."),
    "bench": LazyCommand("bench", "Measure a cluster."),
    "doctor": LazyCommand("doctor", "Find what keeps this host from serving well, and the fix."),
    "simulate": LazyCommand(
        "simulate", "Size a cluster before you buy: plan, run, compare, reproduce."
    ),
    "tenant": LazyCommand("tenant", "Tenants of gateways: API keys, limits, usage."),
    "keys": LazyCommand("keys", "Keys of daemons and operators: make, authorize, revoke."),
    "config": LazyCommand("config", "Check and show config files."),
}


class LazyGroup(typer.core.TyperGroup):
    """Help and completion see the table above; only the command that runs is imported."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        lazy = COMMANDS.get(cmd_name)
        if lazy is None:
            return None
        return typer.core.TyperCommand(cmd_name, help=lazy.help)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in COMMANDS and not ctx.resilient_parsing:
            from difflib import get_close_matches

            for near in get_close_matches(args[0], COMMANDS, n=1):
                ctx.fail(f"No such command {args[0]!r}. Did you mean {near!r}?")
        name, command, rest = super().resolve_command(ctx, args)
        if name in COMMANDS:
            command = self.load(name)
        return name, command, rest

    def load(self, name: str) -> Any:
        """Import a command; the global options are added to each of its verbs."""
        module = importlib.import_module(f"mcctl.commands.{COMMANDS[name].module}")
        interrupts.raise_again()
        command: Any = typer.main.get_command(module.app)
        command.name = name
        command.help = command.help or COMMANDS[name].help
        if verbs := getattr(command, "commands", {}):
            command.help += _examples_of(verbs.values())
        shared = [p for p in self.params if p.name in GLOBALS]
        for leaf in [*getattr(command, "commands", {}).values(), command]:
            leaf.parse_args = complaints.with_context(leaf.parse_args)
            if not getattr(leaf, "commands", None):
                leaf.params.extend(as_shared(param) for param in shared)
                let_show_schema(leaf)
                leaf.callback = with_known_numbers(leaf.callback)
                if watching.is_watchable(leaf.callback):
                    let_watch(leaf, [p for p in self.params if p.name in OF_WATCHING])
        return command


def _examples_of(verbs: Iterable[Any]) -> str:
    """For the help of a noun: the first example of each of its first verbs."""
    found = [example for verb in verbs for example in complaints.examples_in(verb.help)[:1]]
    return "\n\n\b\n" + "\n".join(f"Example: {each}" for each in found[:_SHOWN_EXAMPLES])
