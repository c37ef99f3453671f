"""GG5: which optimizer holds which parameter."""
