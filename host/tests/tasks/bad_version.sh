# A version that fails is rolled back, and the operator sees which one and why.
baton push "$MODULE" report
baton run store://report --node one 2>one.log &
eventually shows 'beat 1 of term' baton logs report
good=$(baton modules report -o json | sed -n 's/.*"digest": "\(.*\)".*/\1/p' | head -1)

baton push "$BAD" report
eventually shows rejected baton modules report
eventually shows version_rejected baton events report
eventually shows "$good" baton status report -o json
# By hand: the rejected version is named once more, and is refused.
baton rollback report
eventually baton status report
