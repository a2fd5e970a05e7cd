#!/usr/bin/env bash
# Installs Azurite, the Azure Storage emulator for the tests, from npm into .cache/azurite, unless it is already there.
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
	# Takes a lock, because tests that start at the same time run this script concurrently.
	exec 9>"$FOLDER.lock"
	flock 9
	if installed; then
		return
	fi
	# Without --prefix, npm would look for a project in the parent folders.
	npm install --prefix "$FOLDER" --no-save --no-audit --no-fund --loglevel=error "azurite@$VERSION"
	if ! installed; then
		echo "azurite.sh: npm did not install Azurite $VERSION in $FOLDER: delete the folder, then run this again" >&2
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
