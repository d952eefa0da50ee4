"""What several of these tests share because it is slow to start."""

from collections.abc import Iterator

import pytest
from kit.object_server import ObjectServer, running_object_server


@pytest.fixture(scope="session")
def object_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    """Up when a test begins and when it ends; each makes a bucket of its own."""
    with running_object_server(tmp_path_factory.mktemp("swift")) as running:
        yield running
