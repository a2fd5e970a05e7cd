#!/usr/bin/env bash
# Unpacks Debian's docker-registry, the registry for the tests, into .cache/registry, unless it is already there.
# Installing the package would require root.
set -euo pipefail

cd "$(dirname "$0")/../.."
readonly FOLDER=$PWD/.cache/registry
readonly PROGRAM=$FOLDER/docker-registry

install() {
	if [[ -x $PROGRAM ]]; then
		return
	fi
	if ! command -v apt-get >/dev/null || ! command -v dpkg >/dev/null; then
		echo "registry.sh: apt-get and dpkg are missing: put a docker-registry (Docker's distribution) at $PROGRAM" >&2
		exit 1
	fi
	mkdir -p "$FOLDER"
	# Takes a lock, because tests that start at the same time run this script concurrently.
	exec 9>"$FOLDER.lock"
	flock 9
	if [[ -x $PROGRAM ]]; then
		return
	fi
	download=$(mktemp -d)
	trap 'rm -rf "$download"' EXIT
	chmod 755 "$download"
	# If the machine's package lists are missing or old, downloads lists into this folder, which does not require root.
	mkdir -p "$download"/lists/partial "$download"/cache/archives/partial
	own=(-o "Dir::State::Lists=$download/lists" -o "Dir::Cache=$download/cache")
	if ! fetch && ! { apt-get -qq "${own[@]}" update && fetch "${own[@]}"; }; then
		echo "registry.sh: apt-get cannot find docker-registry: check the sources in /etc/apt" >&2
		exit 1
	fi
	dpkg -x "$download"/docker-registry_*.deb "$download/unpacked"
	# Moves the program into place last and atomically, so that a test never finds an incomplete installation.
	mv "$download/unpacked/usr/bin/docker-registry" "$PROGRAM.new"
	mv "$PROGRAM.new" "$PROGRAM"
	rm -rf "$download"
	trap - EXIT
}

fetch() {
	(cd "$download" && apt-get -qq "$@" download docker-registry)
}

case ${1-} in
install) install ;;
*)
	echo "usage: host/tests/registry.sh install" >&2
	exit 2
	;;
esac
