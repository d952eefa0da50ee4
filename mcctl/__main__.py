"""`python -m mcctl`."""

from mcctl.main import run

run()
