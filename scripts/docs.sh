#!/usr/bin/env bash
# Builds the pages as a book with a search, target/docs/index.html: the pages of `docs`, those of the root, and the files
# that they link to. Brings mdBook, which takes minutes the first time.
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

# mdBook wants all in one folder, with the list of the pages at its root.
rm -rf "$book" "$target/docs"
mkdir -p "$book/src"
git ls-files -z '*.md' docs wit examples guest-sdk/examples LICENSE | xargs -0 cp --parents -t "$book/src"
sed 's#](\.\./#](./#; t; s#](\([a-z]\)#](docs/\1#' docs/SUMMARY.md >"$book/src/SUMMARY.md"
# The first page of a book is its index.
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
