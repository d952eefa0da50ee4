"""Results as tables and pictures that are larger than a line of their verb."""
