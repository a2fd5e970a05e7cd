#!/usr/bin/env bash
# Puts minisign, the tool with which users sign modules, into .cache/minisign, unless it is already there. If minisign
# is installed, creates a link to the program; otherwise, unpacks the Debian package.
set -euo pipefail

cd "$(dirname "$0")/../.."
readonly FOLDER=$PWD/.cache/minisign

install() {
	if [[ -x $FOLDER/minisign ]]; then
		return
	fi
	mkdir -p "$FOLDER"
	# Takes a lock, because tests that start at the same time run this script concurrently.
	exec 9>"$FOLDER.lock"
	flock 9
	if [[ -x $FOLDER/minisign ]]; then
		return
	fi
	local program libraries
	if program=$(command -v minisign); then
		ln -s "$program" "$FOLDER/minisign"
		return
	fi
	if ! command -v apt-get >/dev/null; then
		echo "minisign.sh: install minisign (https://jedisct1.github.io/minisign/), then run this again" >&2
		exit 1
	fi
	# Unpacks the packages instead of installing them, which would require root.
	cd "$FOLDER"
	apt-get download -qq minisign libsodium23 || { apt-get update -qq && apt-get download -qq minisign libsodium23; }
	for package in *.deb; do dpkg -x "$package" .; done
	libraries=$(dirname "$(find "$FOLDER/usr/lib" -name 'libsodium.so.23' | head -1)")
	printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s/usr/bin/minisign "$@"\n' "$libraries" "$FOLDER" >"$FOLDER/minisign.new"
	chmod +x "$FOLDER/minisign.new"
	"$FOLDER/minisign.new" -v
	mv "$FOLDER/minisign.new" "$FOLDER/minisign"
}

case ${1-} in
install) install ;;
*)
	echo "usage: host/tests/minisign.sh install" >&2
	exit 2
	;;
esac
