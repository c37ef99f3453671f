"""Add a set that was written without sight of the rules, with what gradgate finds in it at first contact.

    python -m corpus.add_set NAME

The scripts are in corpus/unseen/NAME/wrong and right; a right twin has the name of its wrong script. The command
runs gradgate on each of them and appends their rows to the index. Run it before any rule is changed because of the
set: the figures are not measured again.
"""

import argparse
import json
import os
import sys
from collections import Counter
from typing import Any

from corpus.score import check
from corpus.scripts import FOLDER, INDEX, Script, scripts
from corpus.tools import TOOLS


def first_contact(name: str, jobs: int) -> list[dict[str, Any]]:
    """Return the rows of a set, each with what gradgate says of the script."""
    files = sorted((FOLDER / "unseen" / name).glob("*/*.py"))
    rows = [Script(file.relative_to(FOLDER).with_suffix("").as_posix(), "unseen") for file in files]
    outcomes = check(TOOLS["gradgate"], rows, jobs)
    told = []
    for row in rows:
        lines = {alarm.line for alarm in outcomes[row.script].alarms if not alarm.is_note}
        kept: dict[str, Any] = {"script": row.script, "made": row.made}
        if row.is_wrong:
            twin = row.script.replace("/wrong/", "/right/")
            kept |= {"twin": twin} if (FOLDER / f"{twin}.py").is_file() else {}
            at_line = lines & row.marked_lines.keys()
            kept["first_contact"] = "on the line" if at_line else "found" if lines else "missed"
        else:
            kept["first_contact"] = "accused" if lines else "silent"
        told.append(kept)
    return told


def main() -> None:
    """Read the command line, and append the rows of a set."""
    parser = argparse.ArgumentParser(prog="python -m corpus.add_set", description=__doc__.partition("\n")[0])
    parser.add_argument("name", help="the folder in corpus/unseen")
    name = parser.parse_args().name
    if scripts(name):
        sys.exit(f"add_set: the index has the set {name!r} already, and a first contact happens once.")
    rows = first_contact(name, os.cpu_count() or 1)
    if not rows:
        sys.exit(f"add_set: there is no script in corpus/unseen/{name}/wrong or right.")
    with INDEX.open("a", encoding="utf-8") as index:
        index.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    said = Counter(row["first_contact"] for row in rows)
    wrong, right = said["missed"] + said["found"] + said["on the line"], said["silent"] + said["accused"]
    found = said["found"] + said["on the line"]
    print("For docs/checking.md, after a look at whether each alarm names the mistake:")
    print(f"| {wrong} | {found} | {said['on the line']} | {said['accused']} of {right} |")


if __name__ == "__main__":
    main()
