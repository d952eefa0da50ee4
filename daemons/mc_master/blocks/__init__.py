"""What the directory is told and asked: reports, look-ups, clears, pins, flushes, victims."""
