"""What an operator reads whose [object] section cannot be used."""

from pathlib import Path

import pytest

from daemons.config.mc_cachenode import CachenodeConfig, NodeSection, ObjectSection
from daemons.core.errors import ConfigError
from daemons.mc_cachenode.lower.lower_tiers import OpenedTier, open_lower


def open_with(state_dir: str = "/proc/none", **keys: str) -> list[OpenedTier]:
    config = CachenodeConfig(
        node=NodeSection(state_dir=state_dir), object=ObjectSection(bucket="blocks", **keys)
    )
    return open_lower(config, lambda *_: None, lambda *_: None)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"capacity": "64MiB"}, r"holds less than 8 objects of 32\.0? ?MiB; raise it"),
        ({"part": "4KiB"}, r"give object\.part a size from"),
        ({"credentials_file": "/nonexistent"}, r"`object\.credentials_file`: cannot read"),
        ({"endpoint": "http://"}, r"object\.endpoint 'http://': Invalid endpoint"),
        ({"endpoint": "http://127.0.0.1:9"}, r"/proc/none/.*choose another `node\.state_dir`"),
    ],
)
def test_a_section_that_cannot_be_used_says_what_to_change(
    keys: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        open_with(**keys)


@pytest.mark.parametrize(
    "text", ["this is not an ini file", "[other]\nx = 1\n#########", "\xff" * 20]
)
def test_a_credentials_file_without_keys_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "credentials"
    file.write_bytes(text.encode("latin-1"))
    file.chmod(0o600)
    with pytest.raises(ConfigError, match=r"needs a section \[default\] with aws_access_key_id"):
        open_with(credentials_file=str(file))


def test_a_store_is_asked_nothing_when_the_tier_is_opened(tmp_path: Path) -> None:
    """It may be down, or not there yet."""
    file = tmp_path / "credentials"
    file.write_text("[default]\naws_access_key_id = AK\naws_secret_access_key = 100%secret\n")
    file.chmod(0o600)
    (opened,) = open_with(str(tmp_path), endpoint="http://127.0.0.1:9", credentials_file=str(file))
    assert (opened.tier, opened.store.num_blocks) == ("object", 0)
    opened.store.close()
