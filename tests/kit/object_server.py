"""A real S3-compatible object store for tests: OpenStack Swift with its S3 API, as a process on loopback."""

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from daemons.store.object import ObjectBucket, S3Place, open_s3
from kit.daemon import free_port

KEY_ID, SECRET = "test:tester", "testing-testing-testing"


class ObjectServer:
    """Its objects survive `stop`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.credentials_file = directory / "credentials"
        self.credentials_file.write_text(
            f"[default]\naws_access_key_id = {KEY_ID}\naws_secret_access_key = {SECRET}\n"
        )
        self.credentials_file.chmod(0o600)
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        assert self._process is None
        program = Path(__file__).with_name("swift_main.py")
        log = (self.directory / "log").open("a")
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", program, self.directory, str(self.port), SECRET],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        log.close()
        assert self._process.stdout is not None
        ready = self._process.stdout.readline()
        assert ready == "ready\n", (self.directory / "log").read_text()[-2000:]

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()  # where it is suspended, too: what it was asked meanwhile it never does
            self._process.communicate()
            self._process = None

    def suspend(self) -> None:
        """It takes connections, by the kernel, and answers nothing."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def make_bucket(self, name: str) -> None:
        self.client.create_bucket(Bucket=name)

    def keys(self, bucket: str, prefix: str = "") -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return [found["Key"] for page in pages for found in page.get("Contents", [])]

    @cached_property
    def client(self) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id=KEY_ID,
            aws_secret_access_key=SECRET,
            config=Config(s3={"addressing_style": "path"}, read_timeout=10, connect_timeout=5),
        )

    def open(self, bucket: str, prefix: str = "test", timeout_s: float = 5.0) -> ObjectBucket:
        return open_s3(
            S3Place(
                bucket=bucket,
                prefix=prefix,
                endpoint=self.url,
                region="us-east-1",
                credentials=(KEY_ID, SECRET, None),
                timeout_s=timeout_s,
                connections=4,
            )
        )

    def settings(self, bucket: str) -> Sequence[str]:
        """Of a cache node."""
        return (
            f"object.bucket={bucket}",
            f"object.endpoint={self.url}",
            f"object.credentials_file={self.credentials_file}",
            f"node.state_dir={self.directory / 'state' / bucket}",
        )


@contextmanager
def running_object_server(directory: Path) -> Iterator[ObjectServer]:
    """Skips the test where Swift is not installed."""
    if importlib.util.find_spec("swift") is None:
        pytest.skip("no S3 server: pip install 'mooncake-mc[test]' brings Swift")
    directory.mkdir(parents=True, exist_ok=True)
    server = ObjectServer(directory)
    server.start()
    try:
        yield server
    finally:
        server.stop()
