import resource
import subprocess
import sys

import pytest

from daemons.service.limits import FILES

PROGRAM = """
import resource
from daemons.service.limits import raise_file_limit
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
raise_file_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(("soft", "hard"), [(256, 1024), (256, 512), (512, 512)])
def test_files_are_allowed_up_to_the_hard_limit(soft: int, hard: int) -> None:
    own_hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert own_hard == resource.RLIM_INFINITY or own_hard >= hard
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(soft=soft, hard=hard)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert said.split() == [str(min(hard, FILES)), str(hard)]
