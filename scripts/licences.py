#!/usr/bin/env python3
"""Prints the licenses of the program and its dependencies: each text once, below the packages that it applies to.

    cargo metadata --locked --format-version 1 --filter-platform TARGET | scripts/licences.py PACKAGE

The text comes from the license files in the package's folder. For a package without such files, the script uses one of
the texts below, with the package's authors. If there is no suitable text, the script fails.
"""

import json
import sys
from pathlib import Path

# Prefixes of the names of license files, in lower case.
NAMES = ("license", "licence", "copying", "copyright", "notice", "unlicense")

# Maximum size of a license file, in bytes. A larger file is not a license.
LONGEST = 1 << 20

MIT = """Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""

BSD = """Redistribution and use in source and binary forms, with or without modification, are permitted provided that the
following conditions are met:

1. Redistributions of source code must retain the above copyright notice, this list of conditions and the following
   disclaimer.
2. Redistributions in binary form must reproduce the above copyright notice, this list of conditions and the following
   disclaimer in the documentation and/or other materials provided with the distribution.
3. Neither the name of the copyright holder nor the names of its contributors may be used to endorse or promote products
   derived from this software without specific prior written permission.

THIS SOFTWARE IS PROVIDED BY THE COPYRIGHT HOLDERS AND CONTRIBUTORS "AS IS" AND ANY EXPRESS OR IMPLIED WARRANTIES,
INCLUDING, BUT NOT LIMITED TO, THE IMPLIED WARRANTIES OF MERCHANTABILITY AND FITNESS FOR A PARTICULAR PURPOSE ARE
DISCLAIMED. IN NO EVENT SHALL THE COPYRIGHT HOLDER OR CONTRIBUTORS BE LIABLE FOR ANY DIRECT, INDIRECT, INCIDENTAL,
SPECIAL, EXEMPLARY, OR CONSEQUENTIAL DAMAGES (INCLUDING, BUT NOT LIMITED TO, PROCUREMENT OF SUBSTITUTE GOODS OR SERVICES;
LOSS OF USE, DATA, OR PROFITS; OR BUSINESS INTERRUPTION) HOWEVER CAUSED AND ON ANY THEORY OF LIABILITY, WHETHER IN
CONTRACT, STRICT LIABILITY, OR TORT (INCLUDING NEGLIGENCE OR OTHERWISE) ARISING IN ANY WAY OUT OF THE USE OF THIS
SOFTWARE, EVEN IF ADVISED OF THE POSSIBILITY OF SUCH DAMAGE.
"""


def main():
    metadata = json.load(sys.stdin)
    workspace = Path(metadata["workspace_root"])
    apache = (workspace / "LICENSE").read_text()
    texts, unknown = {}, []
    for package in parts(metadata, sys.argv[1]):
        label = f"{package['name']} {package['version']}: {package['license']}"
        found = list(files(Path(package["manifest_path"]).parent))
        # The workspace's own packages share its license file.
        if package["source"] is None:
            found = [apache]
        if not found:
            found = [text for text in [standard(package, apache)] if text]
        if not found:
            unknown.append(label)
        for text in found:
            texts.setdefault(normal(text), []).append(label)
    if unknown:
        sys.exit("no license text for:\n  " + "\n  ".join(unknown))
    print("Baton contains these packages, under these licenses. If a package offers several, you may choose any of them.")
    print("Baton also contains the Rust standard library (MIT or Apache-2.0), and SQLite, which is in the public domain.")
    for text, labels in sorted(texts.items(), key=lambda one: sorted(one[1])):
        print("\n" + "=" * 100)
        print("\n".join(sorted(set(labels))))
        print("-" * 100)
        print(text)


def parts(metadata, name):
    """Returns the packages that become part of the program, including itself, but not build dependencies."""
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    waiting = [package["id"] for package in metadata["packages"] if package["name"] == name]
    seen = set()
    while waiting:
        package = waiting.pop()
        if package not in seen:
            seen.add(package)
            uses = nodes[package]["deps"]
            waiting += [use["pkg"] for use in uses if any(kind["kind"] is None for kind in use["dep_kinds"])]
    return sorted((packages[one] for one in seen), key=lambda package: (package["name"], package["version"]))


def files(folder):
    for path in sorted(folder.rglob("*")):
        depth = len(path.relative_to(folder).parts)
        if depth <= 2 and path.is_file() and path.name.lower().startswith(NAMES) and path.suffix not in (".rs", ".py"):
            if path.stat().st_size <= LONGEST:
                yield path.read_text(errors="replace")


def standard(package, apache):
    """Returns the license text for a package without license files, if any."""
    by = "; ".join(package["authors"]) or f"the authors of {package['name']} ({package['repository']})"
    offered = package["license"].replace("(", " ").replace(")", " ").replace("/", " OR ").split()
    if "Apache-2.0" in offered:
        # Include the LLVM exceptions only if the package grants them.
        return apache if "LLVM-exception" in offered else apache.split("--- LLVM Exceptions")[0]
    for licence, text in (("MIT", MIT), ("BSD-3-Clause", BSD)):
        if licence in offered:
            return f"Copyright (c) {by}\n\n{text}"
    return None


def normal(text):
    return "\n".join(line.rstrip() for line in text.replace("\r\n", "\n").strip().split("\n"))


main()
