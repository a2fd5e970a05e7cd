"""Beats once a second, and counts the beats in the state: the next term goes on from there, on whichever node
it runs."""

import json


def run(host) -> None:
    beats = json.loads(host.get("beats") or b"0")
    host.log(f"term {host.term_number} goes on from beat {beats}")
    while host.sleep(1):
        beats += 1
        host.put("beats", json.dumps(beats).encode())
        host.log(f"beat {beats}")
        host.progress()
