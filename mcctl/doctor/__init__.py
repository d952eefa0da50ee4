"""What would keep this host from serving well, found before a daemon meets it."""
