"""Ways to reach a region: base.py has the interface, one file each, chosen by reach in the engine's order."""
