#!/usr/bin/env bash
# Builds the docs as a searchable book, target/docs/index.html. The book contains the pages in `docs` and in the root
# folder, and the files that they link to. The first run installs mdBook, which takes several minutes.
set -euo pipefail
cd "$(dirname "$0")/.."

version=0.5.4
tools=$PWD/.cache/tools
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
book=$target/book

if [[ "$("$tools/bin/mdbook" --version 2>/dev/null || true)" != "mdbook v$version" ]]; then
  cargo install --locked --debug "mdbook@$version" --no-default-features --features search --root "$tools" \
    --target-dir "$tools/target"
  rm -rf "$tools/target"
fi

# mdBook expects all pages in one folder, with SUMMARY.md at the root of that folder.
rm -rf "$book" "$target/docs"
mkdir -p "$book/src"
git ls-files -z '*.md' docs wit examples guest-sdk/examples LICENSE | xargs -0 cp --parents -t "$book/src"
sed 's#](\.\./#](./#; t; s#](\([a-z]\)#](docs/\1#' docs/SUMMARY.md >"$book/src/SUMMARY.md"
# mdBook requires the first page to be index.md.
mv "$book/src/README.md" "$book/src/index.md"
sed -i 's#](\(\.\./\|\./\)\?README\.md#](\1index.md#g' "$book/src"/*.md "$book/src/docs"/*.md
cat >"$book/book.toml" <<'TOML'
[book]
title = "Baton"
language = "en"

[output.html]
default-theme = "light"
no-section-label = true
TOML
"$tools/bin/mdbook" build --dest-dir "$target/docs" "$book"
echo "the book is in $target/docs/index.html"
