"""mcctl cache locate: where the blocks of a prompt are."""

from pathlib import Path
from typing import Annotated

import typer

from daemons.client.cluster import ClusterClient
from daemons.core.ids import short
from mcctl import render
from mcctl.cache.places import places_text
from mcctl.cache.prompt_blocks import LocatedBlock, LocatedPrompt, Prompt, locate_prompt
from mcctl.output_schema import prints
from mcctl.prompt_text import read_text
from mcctl.render import Column
from mcctl.settings import settings_of


@prints(LocatedPrompt)
def locate(
    context: typer.Context,
    prompt: Annotated[str | None, typer.Option(help="The text itself.")] = None,
    file: Annotated[Path | None, typer.Option(help="A file with the text; - for stdin.")] = None,
    model: Annotated[str | None, typer.Option(help="Needed only where several are served.")] = None,
    model_path: Annotated[
        Path | None,
        typer.Option(help="Directory with the tokenizer, where this host keeps it elsewhere."),
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message before it.")] = None,
    tenant: Annotated[str, typer.Option(help="Whose blocks.")] = "",
    raw: Annotated[
        bool, typer.Option("--raw", help="The text is a whole prompt, not a user's chat message.")
    ] = False,
) -> None:
    """Which blocks of a prompt are in the pool, and where.

    The text is taken as the only user message of a chat, as `mcctl request send` sends it; --raw takes it as it is.

    \b
    Example: mcctl cache locate --file handbook.txt --model SmolLM2-135M-Instruct
    """
    settings = settings_of(context)
    wanted = Prompt(text=read_text(prompt, file), system=system, is_raw=raw, tenant=tenant)
    with ClusterClient(settings.master, settings.wait_s, settings.key_file) as client:
        found = locate_prompt(client, wanted, model=model, model_path=model_path)
    columns = [
        Column("block", lambda b: str(b.index), is_number=True),
        Column("tokens", lambda b: f"{b.start}-{b.end - 1}", is_number=True, extra=2),
        Column("hash", lambda b: short(b.hash)),
        Column("nodes", _nodes_text, is_prose=True),
        Column("begins", lambda b: repr(b.text), is_prose=True, extra=1),
    ]
    render.emit(settings.output, found, columns, found.blocks)
    if settings.output == "table":
        render.note(
            f"{found.num_tokens} tokens of {found.model}: {found.matched_tokens} can be reused, "
            f"{found.tail_tokens} at the end fill no block of {found.block_tokens}"
        )


def _nodes_text(block: LocatedBlock) -> str:
    return places_text((each.node, each.tier) for each in block.replicas) or "-"
