#!/usr/bin/env bash
# Gets what drives a browser through the page at the admin endpoint, unless it is there: Playwright's core from npm, in
# .cache/browser; and, where this is run as root, Debian's Chromium. Without a Chromium those tests are left out.
set -euo pipefail

readonly VERSION=1.64.1

cd "$(dirname "$0")/../.."
readonly FOLDER=$PWD/.cache/browser

installed() {
	grep -qs "\"version\": *\"$VERSION\"" "$FOLDER/node_modules/playwright-core/package.json"
}

install() {
	mkdir -p "$FOLDER"
	# Tests that start at the same time all come here: one installs, the others find it installed.
	exec 9>"$FOLDER.lock"
	flock 9
	if ! installed; then
		if ! command -v npm >/dev/null; then
			echo "browser.sh: npm is missing: install Node.js 20 or newer, then run this again" >&2
			exit 1
		fi
		# It brings no browser of its own. Its own folder is its own project: npm would else look for one in those above.
		npm install --prefix "$FOLDER" --no-save --no-audit --no-fund --loglevel=error "playwright-core@$VERSION"
		if ! installed; then
			echo "browser.sh: npm has installed no playwright-core $VERSION in $FOLDER: delete it and run this again" >&2
			exit 1
		fi
	fi
	if ! command -v chromium >/dev/null; then
		if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
			echo "browser.sh: there is no Chromium, and its tests are left out; as root: apt-get install chromium" >&2
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
