#!/usr/bin/env python3
"""Lists Rust comments that are hard to read: doc comments that open without a noun or a verb, and lines that are too long.

A doc comment opens with a noun or a verb: "The highest term seen so far", "Returns the current leader". An opening such as
"What is read" or "Whether it leads" has no subject. If the share of such openings exceeds LIMIT, the exit status is 1.

Usage: check_comments.py [--list] PATH…
"""

import re
import sys
from pathlib import Path

# Maximum share of doc comments that open without a noun or a verb, in percent.
LIMIT = 4.0
COLUMNS = 120

HEADLESS = re.compile(
    r"(What|Whether|Who|Whom|Whose|Whoever|Whatever|Which|Where|When|Why|How|Of|That|So|Such|None where|Nothing where|As|In so"
    r"|By|For|With|Without|From|To|On|At|Under|Until|Unless|Since|After|Before|Because|Though|And|Or|But|Not)\b"
)
# "How to …" and "When …" are fine in running text, but not as the first words of an item's documentation.
DOC = re.compile(r"\s*(///|//!)(?!/) ?(.*)")


def sources(paths):
    for path in paths:
        path = Path(path)
        files = sorted(path.rglob("*.rs")) if path.is_dir() else [path]
        yield from (file for file in files if "target" not in file.parts)


def main():
    arguments = sys.argv[1:]
    listing = "--list" in arguments
    openings, headless, long = 0, [], []
    for file in sources([argument for argument in arguments if argument != "--list"] or ["."]):
        inside = None
        for number, line in enumerate(file.read_text().splitlines(), 1):
            doc = DOC.match(line)
            if doc and inside != doc[1]:
                openings += 1
                if HEADLESS.match(doc[2].strip()):
                    headless.append(f"{file}:{number}: {doc[2]}")
            inside = doc and doc[1]
            if len(line) > COLUMNS and re.match(r"\s*//", line):
                long.append(f"{file}:{number}: {len(line)} columns")
    if listing:
        print("\n".join(headless + long))
    share = 100 * len(headless) / max(openings, 1)
    print(f"{len(headless)} of {openings} doc comments open without a noun or a verb ({share:.1f}%); {len(long)} lines of comments are longer than {COLUMNS} columns")
    return share > LIMIT or bool(long)


sys.exit(main())
