"""What is said of an error on one line, with the next step, and its exit code."""

import errno
import os
import re
import socket
import threading
from collections.abc import Callable
from typing import Any, Final

from daemons.config.forms import show
from daemons.core.errors import ConfigError, Exhausted, McError, Unavailable
from mcctl import exit_codes
from mcctl.render import complain, note, printable
from mcctl.settings import DEFAULT_ENDPOINT, DEFAULT_URL, Settings

_CANNOT_WRITE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
_NO_SUCH_FILE: Final = (
    errno.EACCES,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
)
"""Of a path that was named: to be put right by whoever named it."""

_NOBODY_AT: Final = (
    r"(?=.*(?:no gateway at|(?:does|did) not answer)).*?://([\w.-]*[A-Za-z][\w.-]*):\d"
)
_LOOK_UP_S: Final = 2.0


def next_step(error: McError, settings: Settings) -> str:
    """Nobody at the defaults: most likely there is no cluster yet. Cut off with a key, but no key of the master's."""
    if not isinstance(error, Unavailable):
        return ""
    if "before a word was said" in error.message and settings.key_file and not settings.master_key:
        return "; --master-key is missing: --key-file needs the public key of the master beside it"
    if re.search(f"{DEFAULT_ENDPOINT} (does|did) not answer", error.message):
        return f"{_end(error)} `mcctl cluster up` starts a cluster here, --endpoint names the master of another"
    if error.message.startswith(f"no gateway at {DEFAULT_URL};"):
        return ", `mcctl cluster up` starts a cluster here"
    unknown = _unknown_host(error.message)
    if unknown is not None:
        return f"{_end(error)} this host finds no address of {unknown}: check the name"
    if re.search(r"(does|did) not answer", error.message) and settings.local_cluster is not None:
        return f"{_end(error)} `mcctl cluster status` says what has ended, `mcctl cluster restart` starts it"
    return ""


def _unknown_host(message: str) -> str | None:
    """Of the address in it, if its name is known not to be one; a name server that is slow says nothing."""
    found = re.search(_NOBODY_AT, message)
    if found is None:
        return None
    host, refusals = found[1], list[OSError | UnicodeError]()

    def look_up() -> None:
        try:
            socket.getaddrinfo(host, None)
        except (OSError, UnicodeError) as error:
            refusals.append(error)

    looking = threading.Thread(target=look_up, daemon=True)
    looking.start()
    looking.join(_LOOK_UP_S)
    return host if refusals else None


def _end(error: McError) -> str:
    return "" if error.message.endswith("?") else ";"


def unforeseen(error: Exception) -> int:
    """What no command expects: wrong arguments, a full disk, a bug."""
    if hasattr(error, "format_message"):  # argument parsing
        if type(error).__name__ == "NoArgsIsHelpError":
            note(str(error))  # the help itself
        else:
            complain(_usage(error))
        return exit_codes.USAGE
    if isinstance(error, OSError) and error.errno in _CANNOT_WRITE:
        complain(f"cannot write {error.filename or 'the output'}: {error.strerror}")
        return exit_codes.exit_code(Exhausted(""))
    if isinstance(error, UnicodeEncodeError):  # an argument in another encoding
        complain(
            f"{printable(error.object.encode('utf-8', 'backslashreplace').decode()[:80])} is not UTF-8 text"
        )
        return exit_codes.USAGE
    if isinstance(error, OSError) and error.errno in _NO_SUCH_FILE and error.filename is not None:
        complain(f"cannot use {show(os.fsdecode(error.filename))}: {error.strerror}")
        return exit_codes.exit_code(ConfigError(""))
    complain(f"this is a bug: {type(error).__name__}: {error}; --verbose shows where")
    return exit_codes.BUG


def _usage(error: Any) -> str:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "mcctl"
    problem = _problem(error)
    end = "" if problem.endswith((".", "?", "!")) else "."
    example = "" if f"`{path} " in problem else _for_example(error, context)
    return f"{problem}{end}{example} Try `{path} --help`."


def _problem(error: Any) -> str:
    """A missing one says what it is."""
    param = getattr(error, "param", None)
    if type(error).__name__ != "MissingParameter" or param is None:
        return str(error.format_message()).strip()
    kind = param.param_type_name
    name = param.opts[0] if kind == "option" else (param.metavar or param.name).upper()
    meaning = (getattr(param, "help", None) or "").strip()
    return f"Missing {kind} {name}{f': {meaning}' if meaning else ''}"


def _for_example(error: Any, context: Any) -> str:
    """A line that would do, where it is not one value that is wrong."""
    if context is None or hasattr(context.command, "commands"):
        return ""
    param = getattr(error, "param", None)
    is_missing = type(error).__name__ == "MissingParameter"
    if param is not None and not is_missing:
        return ""
    examples = examples_in(context.command.help)
    wanted = set(param.opts) if param is not None else set()
    named = [each for each in examples if wanted & set(each.split())]
    return "".join(f" For example: `{each}`." for each in [*named, *examples][:1])


def examples_in(text: str | None) -> list[str]:
    """Of a verb's help: the lines to type."""
    return re.findall(r"^ *Example: (.*)$", text or "", re.MULTILINE)


def with_context(parse: Callable[[Any, list[str]], Any]) -> Callable[[Any, list[str]], Any]:
    """Of a command: some errors of its words do not know whose they are."""

    def parse_args(context: Any, words: list[str]) -> Any:
        try:
            return parse(context, words)
        except Exception as error:
            if getattr(error, "ctx", context) is None:
                vars(error)["ctx"] = context
            raise

    return parse_args
