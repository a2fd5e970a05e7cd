# An election without a leader is visible to a monitoring system: in the exit status, in a probe and in the metrics.
baton run "$MODULE" --election report --node one --admin 127.0.0.1:0 --log-format json 2>one.log &
eventually baton status report
page=http://$(sed -n 's/.*"address":"\([^"]*\)".*/\1/p' one.log | head -1)
curl --fail --silent "$page/leader/report"
curl --silent "$page/metrics" | grep -q '^leader_election_master_status{.*} 1.0$'

baton suspend report --reason 'a test of the alert'
status=0
baton status report || status=$?
[ $status = 3 ]
probe=$(curl --silent --output answer --write-out '%{http_code}' "$page/leader/report")
[ "$probe" = 503 ]
curl --silent "$page/metrics" | grep -q '^leader_election_master_status{.*} 0.0$'
