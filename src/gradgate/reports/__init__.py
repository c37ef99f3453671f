"""Findings and what was watched, as text for people, as JSON and SARIF for programs; and the rules' own pages."""

from gradgate.reports._json import to_json
from gradgate.reports._report import Report, report_on
from gradgate.reports._rules import rule_page, rule_pages
from gradgate.reports._sarif import to_sarif
from gradgate.reports._save import check_form, checked_path, form_of, written
from gradgate.reports._select import Selection, selection
from gradgate.reports._summary import Held, Summary
from gradgate.reports._text import show, to_text
from gradgate.reports._words import counted, lasting, near

__all__ = [
    "Held",
    "Report",
    "Selection",
    "Summary",
    "check_form",
    "checked_path",
    "counted",
    "form_of",
    "lasting",
    "near",
    "report_on",
    "rule_page",
    "rule_pages",
    "selection",
    "show",
    "to_json",
    "to_sarif",
    "to_text",
    "written",
]
