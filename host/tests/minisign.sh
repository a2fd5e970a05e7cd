#!/usr/bin/env bash
# Gets the tool that users sign modules with, unless it is there: minisign from Debian, in .cache/minisign. Where it
# is installed already, that one is taken.
set -euo pipefail

cd "$(dirname "$0")/../.."
readonly FOLDER=$PWD/.cache/minisign

install() {
	if [[ -x $FOLDER/minisign ]]; then
		return
	fi
	mkdir -p "$FOLDER"
	# Tests that start at the same time all come here: one installs, the others find it installed.
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
	# Unpacked rather than installed: that takes no root.
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
