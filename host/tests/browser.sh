#!/usr/bin/env bash
# Installs the tools for the browser tests of the admin endpoint's page, unless they are already installed. They are
# playwright-core, from npm into .cache/browser, and Debian's Chromium, which only root can install. Without Chromium,
# the browser tests are skipped.
set -euo pipefail

readonly VERSION=1.64.1

cd "$(dirname "$0")/../.."
readonly FOLDER=$PWD/.cache/browser

installed() {
	grep -qs "\"version\": *\"$VERSION\"" "$FOLDER/node_modules/playwright-core/package.json"
}

install() {
	mkdir -p "$FOLDER"
	# Takes a lock, because tests that start at the same time run this script concurrently.
	exec 9>"$FOLDER.lock"
	flock 9
	if ! installed; then
		if ! command -v npm >/dev/null; then
			echo "browser.sh: npm is missing: install Node.js 20 or newer, then run this again" >&2
			exit 1
		fi
		# playwright-core contains no browser. Without --prefix, npm would look for a project in the parent folders.
		npm install --prefix "$FOLDER" --no-save --no-audit --no-fund --loglevel=error "playwright-core@$VERSION"
		if ! installed; then
			echo "browser.sh: npm did not install playwright-core $VERSION in $FOLDER: delete it, then run this again" >&2
			exit 1
		fi
	fi
	if ! command -v chromium >/dev/null; then
		if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
			echo "browser.sh: Chromium is missing, so its tests are skipped; as root, run: apt-get install chromium" >&2
			return
		fi
		apt-get install -qqy --no-install-recommends chromium >&2 || {
			apt-get update -qq
			apt-get install -qqy --no-install-recommends chromium >&2
		}
	fi
}

case ${1-} in
install) install ;;
*)
	echo "usage: host/tests/browser.sh install" >&2
	exit 2
	;;
esac
