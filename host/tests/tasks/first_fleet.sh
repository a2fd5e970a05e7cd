# Three nodes run on one machine. One leads, and if it is killed, another takes over.
for node in one two three; do
  baton run "$MODULE" --election report --node $node 2>$node.log &
  echo $! >$node.pid
done
eventually baton status report
eventually shows three baton nodes report

leader() {
  baton status report -o json | sed -n 's/.*"node": "\(.*\)".*/\1/p' | head -1
}
first=$(leader)
kill -9 "$(cat "$first.pid")"
next_leads() {
  [ "$(leader)" != "$first" ] && baton status report
}
eventually next_leads
eventually shows 'beat 1 of term 2' baton logs report
