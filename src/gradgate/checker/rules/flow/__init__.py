"""GG4: where gradient flows, and where it does not."""
