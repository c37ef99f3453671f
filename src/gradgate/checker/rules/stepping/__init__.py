"""GG3: the optimizer step, and the clipping, scaling and scheduling around it."""
