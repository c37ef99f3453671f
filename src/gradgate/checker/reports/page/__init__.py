"""A report as a page that one would rather look at than read: one file that opens anywhere, offline.

Each figure has a file of its own, which turns what was seen into a plotly figure, or into None where there is
nothing to draw. The page puts them together; it is the only place that knows of templates.
"""

from gradgate.checker.reports.page._page import to_html

__all__ = ["to_html"]
