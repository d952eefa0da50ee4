"""mcctl model: fetch the small real model, convert GGUF files, list what this host can serve."""

from pathlib import Path
from typing import Annotated

import typer

from daemons.core.errors import Conflict, NotFound
from daemons.core.units import format_size
from mcctl import model_store, paths, render
from mcctl.commands import check_dtype, new_app
from mcctl.model_store import LocalModel
from mcctl.output_schema import prints
from mcctl.render import Column
from mcctl.settings import settings_of
from mcctl.watching import watchable

app = new_app()


@app.command()
@prints({"name": str, "path": str})
def fetch(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(help="A name of the catalogue.")
    ] = model_store.DEFAULT_MODEL,
) -> None:
    """Download a small model and convert it. Does nothing when it is here already.

    \b
    Example: mcctl model fetch smollm2
    """
    with render.progress(f"looking for {name}") as progress:
        directory = model_store.fetch(name, progress)
    if settings_of(context).output == "json":
        render.emit_json({"name": directory.name, "path": str(directory)})
    else:
        render.emit_line(str(directory))


@app.command("list")
@prints({"models": list[LocalModel]})
@watchable
def list_models(context: typer.Context) -> None:
    """Models under ~/.cache/mooncake/models.

    \b
    Example: mcctl model list --output json
    """
    models = model_store.local_models()
    columns = [
        Column("name", lambda m: m.name),
        Column("architecture", lambda m: m.architecture, extra=1),
        Column("context", lambda m: str(m.max_context_tokens or "?"), is_number=True),
        Column("size", lambda m: format_size(m.size_bytes), is_number=True),
        Column("path", lambda m: m.path),
    ]
    render.emit(settings_of(context).output, {"models": models}, columns, models)


@app.command()
@prints({"name": str, "path": str})
def convert(
    context: typer.Context,
    gguf: Annotated[Path, typer.Argument(help="A GGUF file of a Llama, Qwen2 or Qwen3 model.")],
    directory: Annotated[
        Path | None, typer.Argument(help="Where to; by default beside the fetched models.")
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="bfloat16 or float32.", callback=check_dtype)
    ] = "bfloat16",
) -> None:
    """Turn a GGUF file into a directory that instances can serve.

    \b
    Example: mcctl model convert Qwen3-0.6B.Q8_0.gguf /srv/models/Qwen3-0.6B
    """
    if not gguf.is_file():
        raise NotFound(f"no file {gguf}; name a GGUF file")
    target = (directory or paths.models_dir() / gguf.name.split(".")[0]).absolute()
    if model_store.is_complete(target):
        raise Conflict(f"{target} holds a model already; remove it or choose another directory")
    target.parent.mkdir(parents=True, exist_ok=True)
    with render.progress(f"converting {gguf.name}") as progress:
        model_store.run_converter(gguf.absolute(), target, dtype, progress)
    if settings_of(context).output == "json":
        render.emit_json({"name": target.name, "path": str(target)})
    else:
        render.emit_line(str(target))
