"""Ids, errors, clock, units and file locks: what every other package may import. A closed list."""
