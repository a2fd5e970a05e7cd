#!/usr/bin/env bash
# Builds a release in target/dist: baton-VERSION-TARGET.tar.gz, a .deb, a Python wheel and an npm package. Each has a
# checksum and, if DIST_KEY names a key, a signature. The same commit, toolchain and C compiler produce the same bytes
# in any folder.
#
#   scripts/dist.sh            builds a release
#   scripts/dist.sh --check    builds a release here and in another folder, and compares them
#
#   DIST_TARGET=aarch64-unknown-linux-gnu   builds for another architecture
#   DIST_KEY=minisign.key                   signs the release, and asks for the key's password, if it has one
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
# The timestamp of all files in the release: the time of the commit.
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
    echo "NOT OF A COMMIT: the release contains uncommitted changes" >&2
  fi
  tool cargo-auditable "$auditable_version"
  tool cargo-cyclonedx "$cyclonedx_version"
  if [[ $repository == */OWNER/* ]]; then
    echo "NOT FILLED IN: \`repository\` in Cargo.toml, which appears in packages and new projects" >&2
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

# Installs the pinned version of a tool, as a debug build: an optimized build would take longer than it would save.
tool() {
  local name=$1 version=$2
  if ! grep -qF "\"$name $version (" "$tools/.crates.toml" 2>/dev/null; then
    cargo install --locked --debug "$name@$version" --root "$tools" --target-dir "$tools/target"
    rm -rf "$tools/target"
  fi
}

# Builds the program, including the list of its dependencies, and checks that it contains no paths of this machine.
program() {
  local cargo_home=${CARGO_HOME:-$HOME/.cargo} build=$out/build
  local maps=("$build=/build" "$root=/baton" "$cargo_home=/cargo")
  # rustc and gcc use the last prefix that matches, so the longest prefix comes last.
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
      echo "the program contains paths of this machine:" >&2
      grep -aoE "$folder/[[:print:]]{0,80}" "$1/baton" | sort -u | head >&2
      exit 1
    fi
  done
}

# Generates completions and man pages with the program itself.
generated() {
  if ! "$1/baton" --version >/dev/null 2>&1; then
    echo "NOT MADE: completions and man pages, because this machine cannot run programs for $target" >&2
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

# Writes the bill of materials in CycloneDX format. cargo-cyclonedx writes one next to each manifest. It identifies this
# repository's packages by their local paths, which this function replaces.
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
# Remove the serial number, which differs in each run.
document.pop("serialNumber", None)
assert root not in text and len(document["components"]) > 100
json.dump(document, sys.stdout, indent=1, sort_keys=True)
print()
END
}

# Copies the docs, and the files that they tell the reader to install. Removes links to source files, because they would
# be broken.
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

# The packages contain the completions and man pages, which only a machine of the same architecture can generate.
packages() {
  if [[ -d $1/man ]]; then
    scripts/packages.py "$1" "$version" "$target" "$repository" >/dev/null
  else
    echo "NOT MADE: packages, because there are no man pages" >&2
  fi
}

sign() {
  local file
  if [[ -z ${DIST_KEY:-} ]]; then
    echo "NOT SIGNED: DIST_KEY is not set" >&2
    return
  fi
  if ! command -v minisign >/dev/null; then
    echo "cannot sign with $DIST_KEY: install minisign (Debian: apt-get install minisign)" >&2
    exit 1
  fi
  for file in "$out"/*.sha256; do
    minisign -S -s "$DIST_KEY" -m "${file%.sha256}" -t "$(basename "${file%.sha256}")"
  done
}

# The other folder has a path of a different length, and is not a Git repository.
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
  echo "Both builds have the same bytes."
}

main "$@"
