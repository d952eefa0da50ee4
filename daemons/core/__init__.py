"""Ids, errors, clock and units: what every other package may import. A closed list."""
