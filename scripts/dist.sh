#!/usr/bin/env bash
# Makes a release in target/dist: baton-VERSION-TARGET.tar.gz, a .deb, a Python wheel and an npm package, each with its
# checksum and, if there is a key in DIST_KEY, its signature. The same commit, toolchain and C compiler give the same bytes
# in any folder.
#
#   scripts/dist.sh            makes it
#   scripts/dist.sh --check    makes it here and in another folder, and compares
#
#   DIST_TARGET=aarch64-unknown-linux-gnu   for another kind of machine
#   DIST_KEY=minisign.key                   signs it; a key with a password asks for that
set -euo pipefail
cd "$(dirname "$0")/.."

auditable_version=0.7.7
cyclonedx_version=0.5.9
root=$PWD
tools=${DIST_TOOLS:-$root/.cache/tools}
target=${DIST_TARGET:-$(rustc -vV | sed -n 's/^host: //p')}
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"$/\1/p' Cargo.toml)
repository=$(sed -n '/^\[workspace.package\]/,/^$/s/^repository = "\(.*\)"$/\1/p' Cargo.toml)
name=baton-$version-$target
out=$root/${CARGO_TARGET_DIR:-target}/dist
[[ ${CARGO_TARGET_DIR:-} == /* ]] && out=$CARGO_TARGET_DIR/dist
# The moment that everything in it has: that of the commit.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC

main() {
  case ${1-} in
    '') dist ;;
    --check) check ;;
    *)
      echo "usage: scripts/dist.sh [--check]" >&2
      exit 2
      ;;
  esac
}

dist() {
  local folder=$out/$name
  if [[ -e .git ]] && ! git diff --quiet HEAD; then
    echo "NOT OF A COMMIT: what is made has changes in it that are not committed" >&2
  fi
  tool cargo-auditable "$auditable_version"
  tool cargo-cyclonedx "$cyclonedx_version"
  if [[ $repository == */OWNER/* ]]; then
    echo "NOT FILLED IN: \`repository\` in Cargo.toml, which packages and new projects name" >&2
  fi
  rm -rf "$folder" "$out"/*"$version"*.{tar.gz,deb,whl,tgz}*
  mkdir -p "$folder"
  program "$folder"
  generated "$folder"
  licences "$folder"
  parts "$folder"
  pages "$folder"
  pack "$folder"
  packages "$folder"
  sign
  (cd "$out" && cat -- *.sha256 && ls -l "$name/baton")
}

# Brings a tool that is pinned here. Unoptimised: it builds faster than it would ever make up for.
tool() {
  local name=$1 version=$2
  if ! grep -qF "\"$name $version (" "$tools/.crates.toml" 2>/dev/null; then
    cargo install --locked --debug "$name@$version" --root "$tools" --target-dir "$tools/target"
    rm -rf "$tools/target"
  fi
}

# The program, which carries the list of what it is made of. No folder of this machine is in it.
program() {
  local cargo_home=${CARGO_HOME:-$HOME/.cargo} build=$out/build
  local maps=("$build=/build" "$root=/baton" "$cargo_home=/cargo")
  # The last one that fits counts, for rustc and for gcc: the longest comes last.
  export RUSTFLAGS="--remap-path-prefix=${maps[2]} --remap-path-prefix=${maps[1]} --remap-path-prefix=${maps[0]}"
  export CFLAGS="-ffile-prefix-map=${maps[2]} -ffile-prefix-map=${maps[1]} -ffile-prefix-map=${maps[0]}"
  case $target in
    aarch64-unknown-linux-gnu) export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc ;;
  esac
  CARGO_INCREMENTAL=0 CARGO_TARGET_DIR=$build PATH=$tools/bin:$PATH \
    cargo auditable build --locked --release --package baton --bin baton --target "$target"
  cp "$build/$target/release/baton" "$1/baton"
  local folder
  for folder in "$build" "$root" "$cargo_home"; do
    if grep -aFq "$folder/" "$1/baton"; then
      echo "the program has paths of this machine in it:" >&2
      grep -aoE "$folder/[[:print:]]{0,80}" "$1/baton" | sort -u | head >&2
      exit 1
    fi
  done
}

# What the program says of its command line.
generated() {
  if ! "$1/baton" --version >/dev/null 2>&1; then
    echo "NOT MADE: completions and man pages, since this machine does not run programs for $target" >&2
    return
  fi
  if "$1/baton" completions --help >/dev/null 2>&1; then
    mkdir "$1/completions"
    "$1/baton" completions bash >"$1/completions/baton.bash"
    "$1/baton" completions zsh >"$1/completions/_baton"
    "$1/baton" completions fish >"$1/completions/baton.fish"
  fi
  if "$1/baton" man --help >/dev/null 2>&1; then
    mkdir "$1/man"
    "$1/baton" man "$1/man"
  fi
}

licences() {
  cargo metadata --locked --format-version 1 --filter-platform "$target" | python3 scripts/licences.py baton >"$1/LICENSES.txt"
}

# The list of parts, as CycloneDX has it. Its tool writes one beside each manifest, and knows packages of this repository
# by where they are here.
parts() {
  local file=baton-parts.cdx
  trap 'find . -name target -prune -o -name baton-parts.cdx.json -exec rm {} +' RETURN
  PATH=$tools/bin:$PATH cargo cyclonedx --format json --spec-version 1.5 --target "$target" --override-filename "$file" \
    --manifest-path host/Cargo.toml
  python3 - "$root" "host/$file.json" >"$1/baton.cdx.json" <<'END'
import json, os, sys
root, path = sys.argv[1:]
with open(path) as file:
    text = file.read().replace(f"file://{root}", "file:///baton")
document = json.loads(text)
# It would be another one each time.
document.pop("serialNumber", None)
assert root not in text and len(document["components"]) > 100
json.dump(document, sys.stdout, indent=1, sort_keys=True)
print()
END
}

# The pages, with what is installed by them. Links to the sources lead nowhere from here.
pages() {
  cp LICENSE *.md "$1"
  cp -r docs packaging wit "$1"
  find "$1" -name '*.md' -exec python3 scripts/check_links.py --cut {} +
}

pack() {
  local folder=$1
  tar --create --directory "$(dirname "$folder")" --format=ustar --sort=name --mtime="@$SOURCE_DATE_EPOCH" \
    --owner=0 --group=0 --numeric-owner --mode='u=rwX,go=rX' "$(basename "$folder")" | gzip -9 --no-name >"$folder.tar.gz"
  (cd "$(dirname "$folder")" && sha256sum "$(basename "$folder").tar.gz" >"$(basename "$folder").tar.gz.sha256")
}

# Packages need the completions and manual pages, which only this kind of machine makes.
packages() {
  if [[ -d $1/man ]]; then
    scripts/packages.py "$1" "$version" "$target" "$repository" >/dev/null
  else
    echo "NOT MADE: packages, since there are no manual pages" >&2
  fi
}

sign() {
  local file
  if [[ -z ${DIST_KEY:-} ]]; then
    echo "NOT SIGNED: there is no key in DIST_KEY" >&2
    return
  fi
  if ! command -v minisign >/dev/null; then
    echo "install minisign (Debian: apt-get install minisign) to sign with $DIST_KEY" >&2
    exit 1
  fi
  for file in "$out"/*.sha256; do
    minisign -S -s "$DIST_KEY" -m "${file%.sha256}" -t "$(basename "${file%.sha256}")"
  done
}

# The other folder has another length, too, and no repository.
check() {
  other=$(mktemp -d)
  trap 'rm -rf "$other"' EXIT
  mkdir "$other/another-folder"
  git ls-files -z --cached --others --exclude-standard | tar --create --null --files-from=- |
    tar --extract --directory "$other/another-folder"
  dist
  env -u CARGO_TARGET_DIR DIST_TOOLS="$tools" DIST_TARGET="$target" DIST_KEY= \
    "$other/another-folder/scripts/dist.sh"
  local file
  for file in "$out"/*.sha256; do
    if ! cmp "$file" "$other/another-folder/target/dist/$(basename "$file")"; then
      diff -rq "$out/$name" "$other/another-folder/target/dist/$name" >&2 || true
      exit 1
    fi
  done
  echo "Two builds from two folders are the same bytes."
}

main "$@"
