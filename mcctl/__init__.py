"""Public API of Mooncake MC and the mcctl command line."""
