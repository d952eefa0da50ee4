"""The mcctl program, and `python -m mcctl`: an interrupt is dealt with before anything that takes time is imported."""

import sys

from mcctl import interrupts


def run() -> None:
    """Entry point."""
    interrupts.end_quietly()
    from mcctl.main import run as run_command

    status = 130
    try:
        status = run_command()
    except KeyboardInterrupt:  # between two lines of the error boundary
        pass
    finally:
        interrupts.end_quietly()
    sys.exit(status)


if __name__ == "__main__":
    run()
