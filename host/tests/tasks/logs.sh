# The user who runs the host can read the coordinator's output and the host's events without a token.
baton run "$MODULE" --election report 2>one.log &
eventually shows 'beat 2 of term 1' baton logs report
shows elected baton events report
baton logs report --follow >followed &
eventually grep -q 'beat 9 of term' followed
