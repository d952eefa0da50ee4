"""`python -m kit.mcctl_lines`: mcctl for tests that call it often. A line of JSON with the words of a command line on
stdin, a line of JSON on stdout with its exit code and what it printed; one process, so Python starts once.
"""

import contextlib
import io
import json
import sys

from mcctl.main import main


def serve() -> None:
    for line in sys.stdin:
        out, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            code = main(json.loads(line))
        answer = {"code": code, "out": out.getvalue(), "errors": errors.getvalue()}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
