"""What `mcctl cache` does: objects, archives, pins, replicas, prompts. The verbs are in commands/cache.py."""
