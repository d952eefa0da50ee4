"""What tenants may hold of the pool."""
