"""Several tokens a step: guesses from what the sequence said before, how many pay, what they cost here."""
