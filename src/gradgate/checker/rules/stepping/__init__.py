"""GG3: the optimizer step, and what belongs around it."""
