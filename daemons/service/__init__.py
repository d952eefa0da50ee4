"""What every process does: read its config, log, notify systemd, serve metrics, join the master, drain, leave."""
