"""Block -> replicas for the whole pool: the master's tables, what enters and leaves them, what is looked up in them."""
