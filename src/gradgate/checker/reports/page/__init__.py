"""A report as a page: one file that opens anywhere, offline.

Each figure has a file of its own, which turns a run into a plotly figure, or into None if there is nothing to draw.
"""

from gradgate.checker.reports.page._page import to_html

__all__ = ["to_html"]
