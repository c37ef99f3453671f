"""Codes of rules that are no more. A code never changes its meaning, so none of these is used again."""

RETIRED: dict[str, tuple[str, str]] = {
    "GG204": (
        "skipped-batch",
        "A loop that skips a batch and keeps its gradient looks like one that accumulates a few batches. Of the "
        "corpus's wrong scripts, the rule found two.",
    ),
    "GG408": (
        "compared-with-itself",
        "GG403 reports terms whose two sides are equal, and values that one line adds and subtracts. Overwritten "
        "labels and ratios to a copy can't be told from pseudo-labels and from one pass over each sample.",
    ),
    "GG603": (
        "stale-values",
        "Values that are computed once from parameters, such as casts of an autocast around the whole loop, are "
        "rare. Of the corpus's wrong scripts, the rule found two.",
    ),
}
"""Code: the rule's category, and why it went."""
