"""How one talks to a cluster: nodes, blocks, requests."""
