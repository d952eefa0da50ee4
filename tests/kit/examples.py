"""The examples of README and manual pages: what a reader copies, and how it is run in a place of its own."""

import json
import os
import re
import select
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

Kind = Literal["shell", "python", "text"]

_SHELL: Final = re.compile(
    r"(?:\.venv/bin/)?(?:mcctl|mc-[a-z]+|make|systemctl|ssh|curl|aiperf|for|key)\b"
)
_PYTHON: Final = re.compile(r"from |import ")
_NEEDS_SHELL: Final = re.compile(r"[|<>$~;&*`]")
_CONTINUED: Final = re.compile(r" *\\\n *")


@dataclass(frozen=True, slots=True)
class Example:
    """One line of a shell, or one piece of Python."""

    page: str
    kind: Kind
    text: str

    @property
    def name(self) -> str:
        return f"{self.page}: {self.text.splitlines()[0][:60]}"


def examples_of(page: Path) -> list[Example]:
    """In order. Of kind "text": what no reader would run, such as what a program prints."""
    blocks = _indented(page.read_text()) if page.suffix == ".md" else _literal(page.read_text())
    found = []
    for block in blocks:
        kind = _kind_of(block)
        parts = [block]
        if kind == "shell":
            lines = _CONTINUED.sub(" ", block).splitlines()
            parts = [command for line in lines if (command := re.sub(r"\s+# .*", "", line).strip())]
        found += [Example(page.name, kind, part) for part in parts]
    return found


def _kind_of(block: str) -> Kind:
    if _SHELL.match(block):
        return "shell"
    return "python" if _PYTHON.match(block) else "text"


def _indented(text: str) -> list[str]:
    """Markdown: paragraphs of which each line has four spaces."""
    paragraphs = (part for part in re.split(r"\n\n+", text) if part.startswith("    "))
    return [
        re.sub(r"^    ", "", paragraph, flags=re.MULTILINE).rstrip() for paragraph in paragraphs
    ]


def _literal(text: str) -> list[str]:
    """mdoc: what stands in .Dl and between .Bd -literal and .Ed."""
    found = re.findall(
        r"^\.Dl ([^\n]*)$|^\.Bd -literal.*?\n(.*?)^\.Ed$", text, re.MULTILINE | re.DOTALL
    )
    return [
        (line or block).rstrip().replace("\\(dq", '"').replace("\\e", "\\") for line, block in found
    ]


@dataclass
class Place:
    """A home directory of its own, with the files that examples name. `replaced`: what stands for a reader's own."""

    home: Path
    replaced: dict[str, str] = field(default_factory=dict)
    _tool: "subprocess.Popen[str] | None" = None

    def env(self) -> dict[str, str]:
        xdg = {
            f"XDG_{name}_HOME": str(self.home / f".{name.lower()}")
            for name in ("STATE", "CONFIG", "CACHE")
        }
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return os.environ | xdg | {"HOME": str(self.home), "PATH": path, "COLUMNS": "120"}

    def line(self, line: str, *, timeout_s: float = 120.0) -> "subprocess.CompletedProcess[str]":
        """As `shell`. Lines of mcctl that need no shell share one process, so that Python starts once."""
        if not line.startswith("mcctl ") or _NEEDS_SHELL.search(line):
            return self.shell(line, timeout_s=timeout_s)
        if self._tool is None:
            self._tool = self._start_tool()
        assert self._tool.stdin is not None
        assert self._tool.stdout is not None
        words = shlex.split(self.put_in(line))
        self._tool.stdin.write(json.dumps(words[1:]) + "\n")
        self._tool.stdin.flush()
        assert select.select([self._tool.stdout], [], [], timeout_s)[0], f"{line}: no end"
        answer = json.loads(self._tool.stdout.readline())
        return subprocess.CompletedProcess(words, answer["code"], answer["out"], answer["errors"])

    def close(self) -> None:
        if self._tool is not None:
            self._tool.kill()
            self._tool.communicate()

    def _start_tool(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "kit.mcctl_lines"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self.env() | {"PYTHONPATH": str(Path(__file__).parents[1])},
            cwd=self.home,
        )

    def put_in(self, text: str) -> str:
        for what, stands_for in self.replaced.items():
            text = text.replace(what, stands_for)
        return text

    def shell(self, line: str, *, timeout_s: float = 120.0) -> "subprocess.CompletedProcess[str]":
        command = ["bash", "-euo", "pipefail", "-c", self.put_in(line)]
        return self._run(command, timeout_s)

    def python(self, text: str, *, timeout_s: float = 60.0) -> "subprocess.CompletedProcess[str]":
        return self._run([sys.executable, "-c", self.put_in(text)], timeout_s)

    def start(self, command: list[str]) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=self.env(), cwd=self.home
        )

    def _run(self, command: list[str], timeout_s: float) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            env=self.env(),
            cwd=self.home,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
        )
