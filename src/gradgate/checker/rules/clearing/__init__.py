"""GG2: when gradients are cleared."""
