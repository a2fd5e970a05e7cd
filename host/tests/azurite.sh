#!/usr/bin/env bash
# Gets the emulator that the tests run against, unless it is there: Azurite from npm, in .cache/azurite.
set -euo pipefail

readonly VERSION=3.35.0

cd "$(dirname "$0")/../.."
readonly FOLDER=$PWD/.cache/azurite

installed() {
	[[ -x $FOLDER/node_modules/.bin/azurite-blob ]] &&
		grep -q "\"version\": *\"$VERSION\"" "$FOLDER/node_modules/azurite/package.json"
}

install() {
	if installed; then
		return
	fi
	if ! command -v npm >/dev/null; then
		echo "azurite.sh: npm is missing: install Node.js 18 or newer, then run this again" >&2
		exit 1
	fi
	mkdir -p "$FOLDER"
	# Its own folder is its own project: npm would else look for one in the folders above.
	npm install --prefix "$FOLDER" --no-save --no-audit --no-fund --loglevel=error "azurite@$VERSION"
	if ! installed; then
		echo "azurite.sh: npm has installed no Azurite $VERSION in $FOLDER: delete the folder and run this again" >&2
		exit 1
	fi
}

case ${1-} in
install) install ;;
*)
	echo "usage: host/tests/azurite.sh install" >&2
	exit 2
	;;
esac
