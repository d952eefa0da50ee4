"""Blocks that are copied from peers, as the master asks for."""
