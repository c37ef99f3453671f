"""Training scripts with and without a mistake in their gradients, an index of them, and a scorer for checkers."""
