"""Reports of findings: text for people, JSON and SARIF for programs, and a page with figures."""

from gradgate.checker.reports._baseline import fingerprint, read_baseline, write_baseline
from gradgate.checker.reports._content import Entry, rule_page
from gradgate.checker.reports._forms import check_output, checked_path, form_of, written
from gradgate.checker.reports._json import to_json, to_sarif
from gradgate.checker.reports._report import Report, report_on
from gradgate.checker.reports._select import Selection, selection
from gradgate.checker.reports._summary import Held, Summary
from gradgate.checker.reports._text import show, to_text
from gradgate.checker.reports._words import counted, duration, place_of

__all__ = [
    "Entry",
    "Held",
    "Report",
    "Selection",
    "Summary",
    "check_output",
    "checked_path",
    "counted",
    "duration",
    "fingerprint",
    "form_of",
    "place_of",
    "read_baseline",
    "report_on",
    "rule_page",
    "selection",
    "show",
    "to_json",
    "to_sarif",
    "to_text",
    "write_baseline",
    "written",
]
