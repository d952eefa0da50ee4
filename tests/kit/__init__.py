"""What several tests need: tiny real checkpoints, a client that speaks tokens, ways to hurt a cluster."""
