"""Codes of rules that are no more. A code never changes its meaning, so none of these is used again."""

RETIRED: dict[str, tuple[str, str]] = {
    "GG408": (
        "compared-with-itself",
        "GG403 reports terms whose two sides are equal, and values that one line adds and subtracts. Overwritten "
        "labels and ratios to a copy can't be told from pseudo-labels and from one pass over each sample.",
    ),
}
"""Code: the rule's category, and why it went."""
