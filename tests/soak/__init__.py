"""A long randomized crash test of the pool: real daemons, all faults mixed, and a model of every acknowledged put.

`make soak SOAK_S=600 SEED=1`, or `python -m soak --seconds 600 --seed 1` in tests/. The same seed gives the same
operations and the same faults in the same order; how they meet is up to the machine.
"""
