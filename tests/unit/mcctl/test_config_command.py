"""mcctl config: the verdict on files, and what a daemon would run with."""

import json
from pathlib import Path

import pytest

from mcctl.main import main


def test_good_files_are_ok(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(path) for path in sorted((checkout / "configs").glob("*.toml"))]
    assert main(["config", "check", *files]) == 0
    assert capsys.readouterr().out.count(": ok (mc-") == 5


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("mc-master.toml", "[pool]\nlease = 3\n", "unknown key `pool.lease`"),
        ("mc-master.toml", "[pool]\nlease_s = 'x'\n", "`pool.lease_s`"),
        ("mc-master.toml", "[pool\n", "not valid TOML"),
        ("mc-prefill@a.toml", "", "required field `model`"),
        ("mc-cachenode@0.toml", "[segment]\nsize = 'many'\n", "`segment.size`"),
        ("mc-gateway@a.toml", "", "`models` is empty"),
        ("mc-gateway.toml", "[models]\n", "`models` is empty"),
        ("other.toml", "", "whose config is it?"),
    ],
)
def test_bad_file_is_one_line_and_78(
    name: str, text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert main(["config", "check", str(path)]) == 78
    err = capsys.readouterr().err
    assert said in err
    assert str(path) in err
    assert len(err.splitlines()) == 1


def test_json_has_the_problem_of_each_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "mc-master.toml", tmp_path / "mc-master@b.toml"
    good.write_text("")
    bad.write_text("x = 1\n")
    assert main(["config", "check", str(good), str(bad), "--output", "json"]) == 78
    files = json.loads(capsys.readouterr().out)["files"]
    assert [bool(file["problem"]) for file in files] == [False, True]


def test_show_gives_a_file_that_check_accepts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "show", "mc-decode"]) == 0
    path = tmp_path / "mc-decode@x.toml"
    path.write_text(capsys.readouterr().out)
    assert main(["config", "check", str(path)]) == 0


def test_show_of_a_file_has_its_values_and_the_defaults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mc-master.toml"
    path.write_text("[pool]\nlease_s = 3.5\n")
    assert main(["config", "show", str(path), "--output", "json"]) == 0
    values = json.loads(capsys.readouterr().out)["values"]
    assert values["pool"]["lease_s"] == 3.5
    assert values["node"]["listen"] == "tcp://127.0.0.1:7700"
