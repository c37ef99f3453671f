"""Is this loop's update that of the whole batch? The verdict for anybody's own training loop."""

from gradgate.testing._exact import Verdict, assert_exact_update, compare_update

__all__ = ["Verdict", "assert_exact_update", "compare_update"]
