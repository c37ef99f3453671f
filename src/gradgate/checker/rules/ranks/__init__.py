"""GG106: gradients of several ranks."""
