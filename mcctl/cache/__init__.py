"""What verbs of `mcctl cache` do: archives, flushes, values in files, prompts. The verbs are in commands/cache."""
