"""The report as an HTML page: one file that opens offline.

Each figure has its own file with functions that return plotly figures, or none if there is nothing to draw.
"""

from gradgate.checker.reports.page._page import to_html

__all__ = ["to_html"]
