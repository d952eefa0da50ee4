"""Encoding a long text in pieces whose tokens are remembered, so that a shared prefix is tokenized once.

Exact, not approximate: byte-level BPE never merges across the cut of its pre-tokenizer, and the pre-tokenizers listed
here always cut between a Latin letter and a space before a Latin letter, whatever surrounds them. Pieces end only
there. Where cuts fall depends on the text before them alone, so equal prefixes give equal pieces. Any other tokenizer
encodes the whole text.
"""

import re
import threading
from array import array
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import tokenizers

PIECE_CHARS: Final = 1024
MAX_PIECES: Final = 8192
"""About 6 KB each."""

_CUT: Final = re.compile(r"[A-Za-z](?= [A-Za-z])")

_CL100K_WORDS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_CL100K_REST: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_KNOWN_SPLITS: Final = frozenset(
    _CL100K_WORDS + digits + _CL100K_REST for digits in (r"\p{N}", r"\p{N}{1,3}")
)

EncodeBatch = Callable[[list[str]], Sequence[Sequence[int]]]


class _Pattern(msgspec.Struct):
    Regex: str = ""


class _Step(msgspec.Struct):
    type: str
    use_regex: bool = True
    add_prefix_space: bool = False
    behavior: str = ""
    invert: bool = False
    pattern: _Pattern | None = None
    pretokenizers: list["_Step"] = msgspec.field(default_factory=list)


class _Added(msgspec.Struct):
    content: str


class _Model(msgspec.Struct):
    type: str
    dropout: float | None = None


class _Layout(msgspec.Struct):
    model: _Model
    normalizer: _Step | None = None
    pre_tokenizer: _Step | None = None
    added_tokens: list[_Added] = msgspec.field(default_factory=list)


def can_cut(backend: tokenizers.Tokenizer) -> bool:
    """Whether encoding in pieces gives the tokens of the whole text."""
    try:
        layout = msgspec.json.decode(backend.to_str(), type=_Layout)
    except msgspec.ValidationError:
        return False  # a layout that is not known is not judged
    return (
        layout.model.type == "BPE"
        and not layout.model.dropout
        and (layout.normalizer is None or layout.normalizer.type == "NFC")
        and _cuts_between_words(layout.pre_tokenizer)
        # An added token is matched before all else; one that could span a cut would be torn.
        and not any(
            token.content[:1].isalpha() or token.content[-1:].isalpha() or " " in token.content
            for token in layout.added_tokens
        )
    )


def _cuts_between_words(step: _Step | None) -> bool:
    if step is None:
        return False
    steps = step.pretokenizers if step.type == "Sequence" else [step]
    last = steps[-1] if steps else None
    if last is None or last.type != "ByteLevel" or last.add_prefix_space:
        return False
    splits = [inner for inner in steps[:-1] if inner.type != "Digits"]
    if any(not _is_known_split(inner) for inner in splits):
        return False
    return last.use_regex or bool(splits)


def _is_known_split(step: _Step) -> bool:
    return (
        step.type == "Split"
        and step.behavior.lower() == "isolated"
        and not step.invert
        and step.pattern is not None
        and step.pattern.Regex in _KNOWN_SPLITS
    )


def cut(text: str, piece_chars: int = PIECE_CHARS) -> list[str]:
    """Pieces of at least `piece_chars` but for the last; they join to the text."""
    pieces, start = [], 0
    while found := _CUT.search(text, start + piece_chars):
        pieces.append(text[start : found.end()])
        start = found.end()
    pieces.append(text[start:])
    return pieces


class PieceCache:
    """Least recently used pieces are forgotten. Any thread."""

    def __init__(self, encode_batch: EncodeBatch, max_pieces: int = MAX_PIECES) -> None:
        self._encode_batch = encode_batch
        self._max_pieces = max_pieces
        self._tokens: dict[tuple[str, str], array[int]] = {}
        self._lock = threading.Lock()

    def encode(self, text: str, scope: str = "") -> list[int]:
        """Pieces are remembered for their scope alone: how long it takes says nothing of what others encoded.

        The last piece is not remembered: the next text that shares it most likely goes on in it."""
        pieces = cut(text)
        known = self._recall(pieces[:-1], scope)
        unknown = [piece for piece in pieces if piece not in known]
        fresh = dict(zip(unknown, self._encode_batch(unknown), strict=True)) if unknown else {}
        self._remember({piece: fresh[piece] for piece in pieces[:-1] if piece in fresh}, scope)
        tokens: list[int] = []
        for piece in pieces:
            tokens.extend(known[piece] if piece in known else fresh[piece])
        return tokens

    def _recall(self, pieces: list[str], scope: str) -> dict[str, "array[int]"]:
        found = {}
        with self._lock:
            for piece in pieces:
                tokens = self._tokens.pop((scope, piece), None)
                if tokens is not None:
                    self._tokens[scope, piece] = found[piece] = tokens
        return found

    def _remember(self, fresh: dict[str, Sequence[int]], scope: str) -> None:
        with self._lock:
            for piece, tokens in fresh.items():
                self._tokens[scope, piece] = array("I", tokens)
            while len(self._tokens) > self._max_pieces:
                del self._tokens[next(iter(self._tokens))]
