"""The limit of every request: one bare ZeroMQ round trip to another process on this host."""

from daemons.rpc.echo import RoundTrips, bare_round_trips

__all__ = ["RoundTrips", "bare_round_trips"]
