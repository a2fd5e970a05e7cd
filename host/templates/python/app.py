"""Connects coordinator.py to the host, whose interfaces are in `wit`."""

import json
import os
import traceback
from datetime import datetime, timezone

from componentize_py_types import Err
from wit_world import exports
from wit_world.exports.task import Failure_Retryable
from wit_world.imports import monotonic_clock, poll, schedule, state, term

import coordinator
import http_client


class Task(exports.Task):
    def run(self) -> None:
        try:
            coordinator.run(Host())
        except Exception as error:
            traceback.print_exc()
            # Failure_Fatal instead of Failure_Retryable makes this node hand leadership to another one.
            raise Err(Failure_Retryable(describe(error))) from error


class Host:
    """The host's functions for the coordinator."""

    def __init__(self) -> None:
        self.term = term.number()
        # The settings are those of `env`, `config-var` and `secret` in baton.toml.
        self.settings = os.environ
        self.stop = term.subscribe_stop()

    def scheduled_for(self) -> datetime | None:
        """Returns the due time of this run, if `schedule` in baton.toml is set. A repeated run has the same due time."""
        seconds = schedule.scheduled_for()
        return None if seconds is None else datetime.fromtimestamp(seconds, timezone.utc)

    def sleep(self, seconds: float) -> bool:
        """Waits. Returns False, at once, when the host asks this instance to stop."""
        with monotonic_clock.subscribe_duration(int(seconds * 1e9)) as timer:
            poll.poll([self.stop, timer])
        return term.stop_requested() is None

    def fetch(self, url: str, method="GET", headers: dict | None = None, body=b"") -> http_client.Response:
        """Sends a request. The host sends it only to servers that `allow-http` in baton.toml names."""
        return http_client.fetch(self.stop, url, method, headers or {}, body)

    def get(self, key: str):
        """Returns the value from an earlier commit of this or an earlier term, or None."""
        value = state.get(key)
        return None if value is None else json.loads(value)

    def put(self, values: dict) -> None:
        """Saves values by their keys, all or none. Returns once the store has confirmed them."""
        state.commit([state.Change_Put((key, json.dumps(value).encode())) for key, value in values.items()])

    def log(self, line: str) -> None:
        """Writes a line to the host's log."""
        print(line, flush=True)

    def progress(self) -> None:
        """Reports useful work to the host, for `--stall-after`."""
        term.progress()


def describe(error: Exception) -> str:
    """Describes an error, with the last line of coordinator.py in its traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename.endswith("coordinator.py")]
    return f"{type(error).__name__}: {error} (coordinator.py:{lines[-1]})" if lines else repr(error)
