"""Who is in the cluster: members, drains, keys, and the lives of masters."""
