"""One noun per file; `mcctl.main` imports a file when its noun is used."""

import sys

import typer

from daemons.core.errors import ConfigError, Rejected
from daemons.core.units import parse_size


def new_app(help_text: str | None = None) -> typer.Typer:
    """A noun's app: plain help (the root adds the global options and the line about the noun)."""
    return typer.Typer(
        help=help_text,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def check_size_if_given(value: str | None) -> str | None:
    """Callback of one that may be left out."""
    return None if value is None else check_size(value)


def check_dtype(value: str) -> str:
    """Callback of --dtype of what is written to a disk."""
    if value not in ("bfloat16", "float32"):
        raise typer.BadParameter(f"{value}: write bfloat16 or float32")
    return value


def check_engine_dtype(value: str) -> str:
    """Callback of --dtype of what computes here."""
    if value not in ("auto", "bfloat16", "float32"):
        raise typer.BadParameter(f"{value}: write bfloat16, float32, or auto for what is fast here")
    return value


def check_size(value: str) -> str:
    """Callback of a flag that takes a size."""
    try:
        parse_size(value)
    except ConfigError as error:
        raise typer.BadParameter(error.message) from None
    return value


def check_beginning(value: str | None) -> str | None:
    """Callback of a flag that names things by how they begin: an empty one, as of a variable that is not set, means
    all of them, and is no slip that may pass.
    """
    if value == "":
        raise typer.BadParameter(
            "an empty beginning is that of everything; leave the flag out for all"
        )
    return value


def confirm(question: str, *, yes: bool) -> None:
    """Before what cannot be undone. Raises Rejected where nobody can be asked."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Rejected(f"{question} Say --yes where nobody can be asked")
    typer.confirm(question, abort=True, err=True)
