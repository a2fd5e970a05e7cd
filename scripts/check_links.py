"""Lists broken links in the repository's Markdown pages: links to a missing file, or to a missing heading.

    git ls-files '*.md' | xargs python3 scripts/check_links.py
    python3 scripts/check_links.py --cut PAGE...    removes links to missing files, and keeps their text

The script does not follow links to other sites. If a link is broken, the exit status is 1.
"""

import re
import sys
from pathlib import Path

FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(\s*([^)\s]+)\s*\)")
WHOLE_LINK = re.compile(r"!?\[([^\[\]]*)\]\(\s*([^)\s]+)\s*\)")


def prose(page: Path) -> str:
    """Returns the text of a page without its code blocks."""
    return FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """Returns the anchors of the headings, as code hosts and mdBook generate them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE):
        text = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number = 0
        while (name := f"{text}-{number}" if number else text) in found:
            number += 1
        found.add(name)
    return found


def problems(page: Path) -> list[str]:
    said = []
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists():
            said.append(f"{page}: {link}: no such file")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            said.append(f"{page}: {link}: no such heading")
    return said


def cut(page: Path) -> None:
    def kept(link: re.Match[str]) -> str:
        text, path = link[1], link[2].partition("#")[0]
        is_there = not path or re.match(r"[a-z]+:", path) or (page.parent / path).exists()
        return link[0] if is_there else text

    page.write_text(WHOLE_LINK.sub(kept, page.read_text()))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--cut"]:
        for page in sys.argv[2:]:
            cut(Path(page))
        sys.argv[1:2] = []
    found = [problem for page in sys.argv[1:] for problem in problems(Path(page))]
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))
