# Each task sources this file. A task runs in an empty folder, with `baton` in its PATH. MODULE is a coordinator that
# prints beats, and BAD is a coordinator that fails. A task exits at the first command that fails.
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

# True if a command prints certain text to stdout. Errors do not count, because the error "the store is busy" quotes the
# other process's command line, which may contain the text.
shows() {
  text=$1
  shift
  "$@" | grep -qF -e "$text"
}
