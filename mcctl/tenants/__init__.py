"""What `mcctl tenant` shows of the running cluster: quotas of the pool, usage. The verbs are in commands/tenant/."""
