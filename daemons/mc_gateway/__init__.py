"""mc-gateway: the OpenAI-compatible API in front of a cluster. Tokenizes, hashes, asks, streams; never schedules."""
