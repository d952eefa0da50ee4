"""What the probe warns of, and its heat map: well-formed, every path in it, and refused early where impossible."""

import re
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from daemons.core.errors import ConfigError
from daemons.protocol.probe import PathMeasure
from mcctl.topology_probe import ProbedPath, path_warnings
from mcctl.views import plot_file
from mcctl.views.plot_file import check_plot, write_plot
from mcctl.views.topology import PATH_COLUMNS, matrix_table
from mcctl.views.topology_plot import svg

SHM = PathMeasure(transport="shm", latency_s=9e-6, bytes_per_s=9e9)
TCP = PathMeasure(
    transport="tcp", latency_s=80e-6, bytes_per_s=1e9, nic="eth0", link_bytes_per_s=1.25e9
)
PATHS = [
    ProbedPath(source="here", target="a", measured=SHM),
    ProbedPath(source="here", target="<b>", measured=TCP, warnings=["slow & far"]),
    ProbedPath(source="a", target="<b>", error="gone"),
]


def warnings(measured: PathMeasure, *, is_same_host: bool) -> list[str]:
    path = ProbedPath(source="x", target="y", measured=measured)
    return list(path_warnings(path, is_same_host=is_same_host))


def test_good_paths_get_no_warning() -> None:
    assert warnings(SHM, is_same_host=True) == []
    assert warnings(TCP, is_same_host=False) == []


def test_tcp_on_one_host_is_a_warning_with_its_reason() -> None:
    fallen = msgspec.structs.replace(TCP, passed_over=["shm: no such socket"])
    assert "no such socket" in warnings(fallen, is_same_host=True)[0]
    assert "not among the transports" in warnings(TCP, is_same_host=True)[0]


def test_falling_back_from_rdma_is_a_warning() -> None:
    fallen = msgspec.structs.replace(TCP, passed_over=["rdma: no device"])
    assert warnings(fallen, is_same_host=False) == ["x -> y falls back to tcp: rdma: no device"]


def test_far_under_the_link_is_a_warning() -> None:
    slow = msgspec.structs.replace(TCP, bytes_per_s=0.2e9)
    assert warnings(slow, is_same_host=False) == ["x -> y reaches 16% of the speed of eth0"]


def test_matrix_has_a_row_per_reader_and_a_column_per_target() -> None:
    columns, rows = matrix_table(PATHS)
    cells = [[column.text(row) for column in columns] for row in rows]
    assert [column.title for column in columns] == ["from \\ to", "a", "<b>"]
    assert cells == [
        ["here", "9.00, 9 us, shm", "1.00 (80% of eth0), 80 us, tcp"],
        ["a", "-", "FAILED"],
    ]
    lines = [[column.text(path) for column in PATH_COLUMNS] for path in PATHS]
    assert lines[1] == ["here", "<b>", "tcp", "80.0", "1.000", "eth0", "80%"]
    assert lines[2][2:] == ["FAILED", "-", "-", "-", "-"]


def test_heat_map_is_well_formed_and_shows_every_path() -> None:
    root = ElementTree.fromstring(svg(PATHS))
    text = "".join(root.itertext())
    for words in ("here", "<b>", "9", "shm 9 us", "tcp 80 us", "failed", "gone", "slow & far"):
        assert words in text
    assert svg([])


def test_heat_map_is_written(tmp_path: Path) -> None:
    path = tmp_path / "paths.svg"
    check_plot(path)
    write_plot(path, svg(PATHS))
    assert path.read_text().startswith("<svg ")


@pytest.mark.parametrize("name", ["paths.jpg", "paths", "none/paths.svg"])
def test_plot_that_cannot_be_written_is_refused_before_measuring(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="--plot"):
        check_plot(tmp_path / name)


def test_png_is_drawn_with_its_words(tmp_path: Path) -> None:
    path = tmp_path / "paths.png"
    try:
        check_plot(path)
    except ConfigError as error:
        pytest.skip(str(error))
    drawn = []
    for image in (svg(PATHS), re.sub("<text.*?</text>", "", svg(PATHS))):
        write_plot(path, image)
        drawn.append(path.read_bytes())
        assert drawn[-1].startswith(b"\x89PNG")
    assert len(drawn[0]) > len(drawn[1])


def test_png_of_a_host_without_fonts_is_refused_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plot_file, "_FONT_FOLDERS", (str(tmp_path),))
    with pytest.raises(ConfigError, match="apt install fonts-dejavu-core"):
        check_plot(tmp_path / "paths.png")
