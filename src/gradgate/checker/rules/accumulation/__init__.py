"""GG101 to GG105: how micro-batches are added up and divided."""
