"""What leaves a full node first, and what may not: policies, leases, pins, heat, the choice of victims."""
