"""The daemons of Mooncake MC and the code they share; see ARCHITECTURE.md for the map."""
