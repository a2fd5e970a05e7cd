#!/usr/bin/env python3
"""A node of an election in etcd, which uses etcd's election service.

The session behaves like a session of etcd's Go client: it renews its lease after each third of the TTL. The session is
lost if etcd reports this, or if etcd has not answered for one TTL, which is checked every 0.5 s. The leader appends a
line to a file every 10 ms. If the last argument is `true`, it checks before each line that the session is not lost.

    elect.py http://127.0.0.1:2379 ELECTION TTL FILE NODE true|false
"""

import base64
import json
import os
import signal
import sys
import threading
import time
import urllib.request
from functools import partial


class Session:
    """A lease. `lost` is set once the lease is lost."""

    def __init__(self, url: str, ttl: int) -> None:
        self.url, self.ttl = url, ttl
        self.lease = self.ask("lease/grant", {"TTL": ttl})["ID"]
        self.deadline = time.monotonic() + ttl
        self.lost = threading.Event()
        for work in (self.keep_alive, self.watch):
            threading.Thread(target=work, daemon=True).start()

    def ask(self, what: str, body: dict, timeout: float | None = None) -> dict:
        request = urllib.request.Request(f"{self.url}/v3/{what}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return json.load(answer)

    def keep_alive(self) -> None:
        while not self.lost.wait(self.ttl / 3):
            try:
                answer = self.ask("lease/keepalive", {"ID": self.lease}, timeout=self.ttl / 3)
            except OSError:
                continue
            left = int(answer["result"].get("TTL", 0))
            if left == 0:
                self.lost.set()
            self.deadline = time.monotonic() + left

    def watch(self) -> None:
        while not self.lost.wait(0.5):
            if time.monotonic() > self.deadline:
                self.lost.set()


def lead(session: Session, path: str, node: str, token: str, heeds: bool) -> None:
    """Runs the task. The node leads until this function returns."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    while not (heeds and session.lost.is_set()):
        os.write(file, f"{node} {token} {time.time():.6f}\n".encode())
        time.sleep(0.01)
    os.close(file)


def resign(session: Session, won: dict, *_: object) -> None:
    """Handles SIGTERM: resigns, and exits without resuming the task that the signal has interrupted."""
    session.ask("election/resign", {"leader": won})
    os._exit(0)


def main() -> None:
    url, election, ttl, path, node, heeds = sys.argv[1:]
    name = base64.b64encode(election.encode()).decode()
    while True:
        session = Session(url, int(ttl))
        won = session.ask("election/campaign", {"name": name, "lease": session.lease, "value": ""})["leader"]

        signal.signal(signal.SIGTERM, partial(resign, session, won))
        lead(session, path, node, won["rev"], heeds == "true")


main()
