import os
from pathlib import Path

import pytest

from daemons.config.secret import read_secret
from daemons.core.errors import ConfigError


def test_a_secret_is_long_and_not_for_everyone(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("0123456789abcdef0123\n")
    path.chmod(0o600)
    assert read_secret(str(path)) == b"0123456789abcdef0123"
    assert read_secret("") is None
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod"):
        read_secret(str(path))
    path.chmod(0o600)
    path.write_text("short\n")
    with pytest.raises(ConfigError, match="holds less"):
        read_secret(str(path))
    with pytest.raises(ConfigError, match="cannot read"):
        read_secret(str(tmp_path / "none"))


@pytest.mark.parametrize("what", ["pipe", "device", "directory", "large"])
def test_what_is_no_small_file_is_no_secret(tmp_path: Path, what: str) -> None:
    path = tmp_path / what
    match what:
        case "pipe":
            os.mkfifo(path, 0o600)
        case "device":
            path.symlink_to("/dev/zero")
        case "directory":
            path.mkdir(0o700)
        case _:
            path.write_bytes(bytes(1 << 20))
            path.chmod(0o600)
    with pytest.raises(ConfigError, match="secret_file"):
        read_secret(str(path))


def test_a_name_without_a_slash_is_a_credential(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    with pytest.raises(ConfigError, match=r"names a credential, but there is no \$CREDENTIALS"):
        read_secret("mooncake.secret")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    (tmp_path / "mooncake.secret").write_text("0123456789abcdef")
    (tmp_path / "mooncake.secret").chmod(0o400)
    assert read_secret("mooncake.secret") == b"0123456789abcdef"
