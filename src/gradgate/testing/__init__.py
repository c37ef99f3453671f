"""Check whether any training loop makes the update of the whole batch."""

from gradgate.testing._exact import Verdict, assert_exact_update, compare_update

__all__ = ["Verdict", "assert_exact_update", "compare_update"]
