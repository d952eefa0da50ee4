"""Names for what a KV block depends on: the model's identity, and the namespace of its blocks."""

import hashlib
import json
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final

from daemons.engine.checkpoint.model_files import weight_files

DIGEST_BYTES: Final = 16
LAYOUT_VERSION: Final = 1  # of [layer][k|v][token][kv_head][head_dim]; raise when it changes
CACHE_NAME: Final = ".mooncake-fingerprint.json"


@dataclass(frozen=True, slots=True)
class NamespaceParts:
    """Everything that must be equal before two engines may share a block."""

    fingerprint: bytes
    dtype: str
    block_tokens: int
    numerics_id: str
    tp_shard: str = "0/1"
    adapter: str = ""
    tenant_salt: bytes = b""
    layout_version: int = LAYOUT_VERSION


def namespace(parts: NamespaceParts) -> bytes:
    """16 bytes: the root that block hashes chain from."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES, person=b"mc-namespace")
    for part in astuple(parts):
        data = part if isinstance(part, bytes) else str(part).encode()
        # Lengths first: ("ab", "c") must not equal ("a", "bc").
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.digest()


def model_fingerprint(model_dir: Path) -> bytes:
    """16 bytes over `config.json` and every weight byte.

    Reads all weights (about 1 s per GiB), so the answer is kept beside the model, where the
    directory is writable, for as long as names, sizes and modification times stay.
    """
    files = [model_dir / "config.json", *weight_files(model_dir)]
    state = {file.name: [file.stat().st_size, file.stat().st_mtime_ns] for file in files}
    cache = model_dir / CACHE_NAME
    with suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(cache.read_text())
        if kept["files"] == state:
            return bytes.fromhex(kept["fingerprint"])
    digest = hash_files(files)
    with suppress(OSError):
        partial = cache.with_suffix(".tmp")
        partial.write_text(json.dumps({"files": state, "fingerprint": digest.hex()}))
        partial.replace(cache)
    return digest


def hash_files(files: list[Path]) -> bytes:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES, person=b"mc-model")
    for path in files:
        with path.open("rb") as file:
            content = hashlib.file_digest(file, hashlib.blake2b).digest()
        digest.update(content)
    return digest.digest()
