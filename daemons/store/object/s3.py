"""The client of an S3-compatible store: every call bounded in time, every error one of ours.

boto3 comes with the [s3] extra and is imported when a node has an object tier, for it takes a second and 100 MB.
"""

import importlib
import io
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Final

from daemons.core.errors import ConfigError, NotFound, Unavailable
from daemons.store.object.bucket import ObjectBucket, StoredKey

_CHUNK_BYTES: Final = 64 << 10
_MAX_DELETES: Final = 1000
"""In one request; S3's limit."""
_CALL_PARTS: Final = 6
"""A whole call takes at most so many times the time without a byte: two tries, and what a slow line needs."""
_MISSING: Final = ("NoSuchKey", "404", "InvalidRange")
_REFUSED: Final = (
    "AccessDenied",
    "InvalidAccessKeyId",
    "NoSuchBucket",
    "SignatureDoesNotMatch",
    "InvalidBucketName",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Place:
    """Where a node's objects are; `prefix` ends with its name. `credentials` (key id, secret, session token); None for
    what boto3 finds itself: AWS_ACCESS_KEY_ID and its like, ~/.aws, the machine's role.
    """

    bucket: str
    prefix: str
    endpoint: str
    region: str
    credentials: tuple[str, str, str | None] | None
    timeout_s: float
    """Without a byte."""
    connections: int


def open_s3(place: S3Place) -> ObjectBucket:
    """Asks nobody yet. Raises ConfigError when boto3 is missing or takes none of it."""
    boto3, config, exceptions = boto3_modules("boto3", "botocore.config", "botocore.exceptions")
    key_id, secret, token = place.credentials or (None, None, None)
    try:
        client = boto3.client(
            "s3",
            endpoint_url=place.endpoint or None,
            region_name=place.region,
            aws_access_key_id=key_id,
            aws_secret_access_key=secret,
            aws_session_token=token,
            config=config.Config(
                # Paths suit every store; names of hosts need a wildcard in the DNS.
                s3={"addressing_style": "path" if place.endpoint else "auto"},
                # Not all stores know the newer checksums; the seal is what counts here.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                connect_timeout=min(2.0, place.timeout_s),
                read_timeout=place.timeout_s,
                max_pool_connections=place.connections,
                retries={"mode": "standard", "total_max_attempts": 2},
            ),
        )
    except (exceptions.BotoCoreError, ValueError) as error:
        raise ConfigError(f"object.endpoint {place.endpoint!r}: {error}") from error
    return _S3Bucket(client, place, (exceptions.BotoCoreError, exceptions.ClientError))


def boto3_modules(*names: str) -> list[ModuleType]:
    """Raises ConfigError when the extra is missing."""
    try:
        return [importlib.import_module(name) for name in names]
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"object.bucket is set, but {error.name} is not installed; pip install 'mooncake-mc[s3]' into this "
            "environment"
        ) from None


class _S3Bucket:
    """Keys below the prefix, which nobody above sees."""

    def __init__(
        self, client: Any, place: S3Place, errors: tuple[type[Exception], ...]
    ) -> None:  # boto3 makes its client's methods at run time
        self._client = client
        self._place = place
        self._errors: tuple[type[Exception], ...] = (*errors, OSError)
        self._prefix = place.prefix.strip("/") + "/"
        self._call_s = _CALL_PARTS * place.timeout_s

    def put(self, key: str, body: memoryview) -> None:
        try:
            self._client.put_object(
                Bucket=self._place.bucket,
                Key=self._prefix + key,
                Body=_Body(body, self._deadline_s()),
            )
        except self._errors as error:
            raise self._failed("write", key, error) from error

    def get(self, key: str, first: int = 0, length: int | None = None) -> memoryview:
        wanted = {} if length is None else {"Range": f"bytes={first}-{first + length - 1}"}
        deadline_s = self._deadline_s()
        try:
            reply = self._client.get_object(
                Bucket=self._place.bucket, Key=self._prefix + key, **wanted
            )
            got = _read_all(reply["Body"], int(reply["ContentLength"]), deadline_s)
        except self._errors as error:
            raise self._failed("read", key, error) from error
        if length is not None and len(got) != length:
            raise NotFound(f"{key} has no {length} bytes at {first}")
        return got

    def delete(self, keys: Sequence[str]) -> None:
        for start in range(0, len(keys), _MAX_DELETES):
            some = keys[start : start + _MAX_DELETES]
            wanted = {"Objects": [{"Key": self._prefix + key} for key in some], "Quiet": True}
            try:
                reply = self._client.delete_objects(Bucket=self._place.bucket, Delete=wanted)
            except self._errors as error:
                raise self._failed("delete", some[0], error) from error
            errors = reply.get("Errors", [])
            if errors:
                raise Unavailable(f"{self._where} did not delete {some[0]}: {errors[0]}")

    def list(self, prefix: str) -> Iterable[StoredKey]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._place.bucket, Prefix=self._prefix + prefix
        )
        return self._listed(prefix, pages)

    def of(self, node: str) -> ObjectBucket:
        beside = f"{self._place.prefix.rpartition('/')[0]}/{node}"
        return _S3Bucket(self._client, replace(self._place, prefix=beside), self._errors)

    def _listed(self, prefix: str, pages: Iterable[Any]) -> Iterator[StoredKey]:
        try:
            for page in pages:
                for found in page.get("Contents", []):
                    yield StoredKey(found["Key"].removeprefix(self._prefix), int(found["Size"]))
        except self._errors as error:
            raise self._failed("list", prefix, error) from error

    def _deadline_s(self) -> float:
        return time.monotonic() + self._call_s

    @property
    def _where(self) -> str:
        return f"the object store at {self._place.endpoint or self._place.region}"

    def _failed(self, verb: str, key: str, error: Exception) -> NotFound | Unavailable:
        code = _code_of(error)
        if verb == "read" and code in _MISSING:
            return NotFound(f"{key} is not in {self._where}")
        if code in _REFUSED:
            return Unavailable(
                f"{self._where} refuses ({code}): check object.bucket {self._place.bucket!r} and the credentials"
            )
        return Unavailable(f"{self._where} could not {verb} {key}: {error}")


def _code_of(error: Exception) -> str:
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def _read_all(stream: Any, num_bytes: int, deadline_s: float) -> memoryview:
    """Raises OSError past the deadline: timeouts between bytes alone let a slow store hold a thread for hours."""
    got = bytearray(num_bytes)
    view = memoryview(got)
    done = 0
    try:
        while done < num_bytes:
            chunk = stream.read(min(_CHUNK_BYTES, num_bytes - done))
            if not chunk:
                raise OSError(f"the answer ends after {done} of {num_bytes} bytes")
            view[done : done + len(chunk)] = chunk
            done += len(chunk)
            _check(deadline_s)
    finally:
        stream.close()
    return view


class _Body(io.RawIOBase):
    """Memory as a file that is sent until the deadline; boto3 reads it more than once, to sign and to send."""

    def __init__(self, body: memoryview, deadline_s: float) -> None:
        self._body = body
        self._deadline_s = deadline_s
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self._body)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._body)}[whence]
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        _check(self._deadline_s)
        end = len(self._body) if size is None or size < 0 else self._at + size
        chunk = bytes(self._body[self._at : end])
        self._at += len(chunk)
        return chunk


def _check(deadline_s: float) -> None:
    if time.monotonic() > deadline_s:
        raise TimeoutError("it takes too long")
