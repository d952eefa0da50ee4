"""Messages to one prompt text with the model's own Jinja template, in a sandbox.

The template is data out of a model directory: it reaches no attribute of the process, loads no other file, and
its output is bounded. A broken template or messages it refuses are Rejected with the template's own words.
"""

import json
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, NoReturn

import jinja2
import msgspec
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from daemons.core.errors import ConfigError, Rejected
from daemons.core.units import MIB

MAX_OUTPUT_CHARS: Final = 32 * MIB
MAX_REPEAT: Final = 100_000
"""Largest number, and longest repetition, of `*` and `**`: a template needs a few, an attack needs many."""

Message = Mapping[str, object]


class TemplateRefusal(jinja2.TemplateError):
    """The template called raise_exception: these messages do not fit the model."""


class _Generation(Extension):
    """`{% generation %}` marks the assistant's tokens for training; here it means its body."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it so

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: jinja2.runtime.Macro) -> str:
        return str(caller())


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**"})

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: object, right: object
    ) -> object:
        for side, other in ((left, right), (right, left)):
            if not isinstance(side, int):
                continue
            size = len(other) if isinstance(other, Sized) else 1
            if abs(side) * max(size, 1) > MAX_REPEAT:
                raise jinja2.exceptions.SecurityError(f"{operator} makes more than {MAX_REPEAT}")
        return super().call_binop(context, operator, left, right)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateRefusal(message)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _tojson(value: object, indent: int | None = None, **_: object) -> str:
    """Plain JSON: jinja2's own filter escapes for HTML, which would change what the model reads."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _environment() -> _Sandbox:
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _tojson
    del environment.filters["center"]  # makes any length out of one number
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


@dataclass(frozen=True)
class ChatTemplate:
    """A compiled template, or why it does not compile; safe to use from any thread."""

    where: str
    template: jinja2.Template | None
    defect: str
    special_tokens: Mapping[str, str]
    max_output_chars: int = MAX_OUTPUT_CHARS

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """The prompt. `variables` are extra names for the template, as Qwen's enable_thinking."""
        if self.template is None:
            raise Rejected(f"the chat template of {self.where} is broken: {self.defect}")
        names = {
            **self.special_tokens,
            **(variables or {}),
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
            "tools": None,
            "documents": None,
        }
        try:
            return self._joined(self.template.generate(names))
        except TemplateRefusal as error:
            raise Rejected(f"the model's chat template refused the messages: {error}") from error
        except RecursionError as error:
            raise Rejected("the model's chat template nests too deep for these messages") from error
        except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise Rejected(
                f"the model's chat template failed on these messages: {type(error).__name__}: {error}"
            ) from error
        except AttributeError as error:
            raise Rejected(f"the model's chat template failed: {error}") from error

    def _joined(self, pieces: Iterable[str]) -> str:
        parts, room = [], self.max_output_chars
        for piece in pieces:
            room -= len(piece)
            if room < 0:
                raise Rejected(
                    f"the chat template wrote more than {self.max_output_chars} characters"
                )
            parts.append(piece)
        return "".join(parts)


def compile_template(
    source: str,
    *,
    special_tokens: Mapping[str, str] | None = None,
    where: str = "the model",
    max_output_chars: int = MAX_OUTPUT_CHARS,
) -> ChatTemplate:
    """A broken template is kept with its defect: the model can still complete bare prompts."""
    template, defect = None, ""
    try:
        template = _environment().from_string(source)
    except jinja2.TemplateSyntaxError as error:
        defect = f"line {error.lineno}: {error.message}"
    except RecursionError:
        defect = "it nests too deep"
    return ChatTemplate(where, template, defect, special_tokens or {}, max_output_chars)


def load_chat_template(
    directory: Path, settings: Mapping[str, object], special_tokens: Mapping[str, str]
) -> ChatTemplate | None:
    """`chat_template.jinja`, or what `tokenizer_config.json` holds (one, or a list with a default), or None."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        try:
            source = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path} is not UTF-8: {error}") from error
        return compile_template(source, special_tokens=special_tokens, where=str(path))
    found = _configured_template(settings.get("chat_template"))
    if found is None:
        return None
    where = str(directory / "tokenizer_config.json")
    return compile_template(found, special_tokens=special_tokens, where=where)


class _Named(msgspec.Struct):
    name: str
    template: str


def _configured_template(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    try:
        choices = msgspec.convert(value, list[_Named])
    except msgspec.ValidationError as error:
        raise ConfigError(f"chat_template in tokenizer_config.json: {error}") from error
    by_name = {choice.name: choice.template for choice in choices}
    return by_name.get("default", choices[0].template if choices else None)
