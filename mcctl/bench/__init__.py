"""What `mcctl bench` measures, a file each, and the published system beside it. The verbs are in commands/bench."""
