#!/usr/bin/env bash
# Gets the registry that the tests run against, unless it is there: Debian's docker-registry, in .cache/registry.
# It is unpacked there and not installed, so that any user can do it.
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
	# Tests that start at the same time all come here: one unpacks it, the others find it unpacked.
	exec 9>"$FOLDER.lock"
	flock 9
	if [[ -x $PROGRAM ]]; then
		return
	fi
	download=$(mktemp -d)
	trap 'rm -rf "$download"' EXIT
	chmod 755 "$download"
	# A machine that has no lists of packages, or old ones, gets some here: for that nobody need be root.
	mkdir -p "$download"/lists/partial "$download"/cache/archives/partial
	own=(-o "Dir::State::Lists=$download/lists" -o "Dir::Cache=$download/cache")
	if ! fetch && ! { apt-get -qq "${own[@]}" update && fetch "${own[@]}"; }; then
		echo "registry.sh: apt-get finds no docker-registry: is it in what /etc/apt names?" >&2
		exit 1
	fi
	dpkg -x "$download"/docker-registry_*.deb "$download/unpacked"
	# Last comes the program, whole: a test that finds it needs nothing else.
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
