"""What holds for the tests with several ranks."""

collect_ignore = ["scripts"]  # run by test_checked_ranks.py, not imported for docstring examples
