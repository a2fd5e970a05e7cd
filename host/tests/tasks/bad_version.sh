# A version that fails is rolled back, and the operator sees which one and why.
baton run store://report --node one 2>one.log &
eventually shows one baton nodes report
# The node waits for a first version, and does not lead.
status=0
baton status report || status=$?
[ $status = 3 ]

baton push "$MODULE" report
eventually shows 'beat 1 of term' baton logs report
good=$(baton modules report -o json | sed -n 's/.*"digest": "\(.*\)".*/\1/p' | head -1)

baton push "$BAD" report
eventually shows rejected baton modules report
eventually shows version_rejected baton events report
eventually shows "$good" baton status report -o json
