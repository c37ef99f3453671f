"""Print the table of events; with a file, renew the table in it: ``python -m gradgate.events FILE``."""

import sys
from pathlib import Path

from gradgate.events._describe import describe, renewed

if sys.argv[1:]:
    page = Path(sys.argv[1])
    page.write_text(renewed(page.read_text("utf-8")), encoding="utf-8")
else:
    sys.stdout.write(describe())
