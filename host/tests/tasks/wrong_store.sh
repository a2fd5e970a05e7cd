# If the store's URL is misspelled, or the store cannot be opened, the error names the cause and says what to do.
refused() {
  expected=$1
  shift
  status=0
  "$@" >answer 2>&1 || status=$?
  [ $status = "$expected" ] || { cat answer; echo "exit status $status, not $expected: $*"; exit 1; }
}
refused 2 baton run "$MODULE" --store azrue://contoso/leases
grep -q 'azure://ACCOUNT/CONTAINER' answer
refused 1 baton status report --store sqlite:nowhere
grep -q nowhere answer
refused 1 baton doctor --quick --store sqlite:/proc/store
grep -q 'to do:' answer
