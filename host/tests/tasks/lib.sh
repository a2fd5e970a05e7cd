# Read by each task, which runs in an empty folder with `baton` in its path. MODULE is a coordinator that beats, and BAD one
# that fails. A task ends at its first command that fails.
set -eu

trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT

# Runs a command until it succeeds.
eventually() {
  tries=0
  until "$@" >/dev/null 2>&1; do
    tries=$((tries + 1))
    if [ $tries = 600 ]; then
      echo "still fails: $*" >&2
      "$@"
    fi
    sleep 0.2
  done
}

# True if a command prints a text. Errors do not count: "the store is busy" quotes the other process's command line.
shows() {
  text=$1
  shift
  "$@" | grep -qF -e "$text"
}
