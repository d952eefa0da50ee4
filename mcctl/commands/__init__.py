"""One noun per file; `mcctl.main` imports a file when its noun is used."""

import typer


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
