"""A decode step: who takes part, attention of single rows, the kernel forms with the same bits, the next token."""
