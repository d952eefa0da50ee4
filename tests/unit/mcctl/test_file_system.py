from pathlib import Path

from mcctl.file_system import file_system


def test_it_is_that_of_the_nearest_mount_also_before_the_directory_is_there() -> None:
    proc, root = file_system(Path("/proc/self/not-there")), file_system(Path("/"))
    assert proc is not None
    assert root is not None
    assert (proc.kind, proc.is_memory) == ("proc", False)
    assert root.kind not in ("proc", "unknown")
