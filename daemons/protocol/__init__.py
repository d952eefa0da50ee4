"""The wire contract by noun: msgspec structs, one closed union per server (messages.py), the prefix hash."""
