# Programs need the token to read logs and to steer through the admin endpoint.
baton token token
baton run "$MODULE" --election report --admin 127.0.0.1:0 --admin-token-file token --log-format json 2>one.log &
eventually baton status report
page=http://$(sed -n 's/.*"address":"\([^"]*\)".*/\1/p' one.log | head -1)

ask() {
  curl --silent --output answer --write-out '%{http_code}' "$@"
}
[ "$(ask "$page/v1/elections/report/logs")" = 401 ]
[ "$(ask --header 'Authorization: Bearer wrong' "$page/v1/elections/report/logs")" = 401 ]
with="Authorization: Bearer $(cat token)"
[ "$(ask --header "$with" "$page/v1/elections/report/logs")" = 200 ]
[ "$(ask --request POST "$page/v1/elections/report/suspend")" = 401 ]
[ "$(ask --header "$with" --json '{"reason": "maintenance"}' "$page/v1/elections/report/suspend")" = 200 ]
shows maintenance baton status report
