"""What the host calls, and what it offers: see wit/deps/baton-host.wit."""

import traceback

from componentize_py_types import Err
from wit_world import exports
from wit_world.exports.task import Failure_Retryable
from wit_world.imports import monotonic_clock, poll, state, term

import coordinator


class Host:
    """The host, as the coordinator sees it."""

    def __init__(self) -> None:
        self.term_number = term.number()

    def sleep(self, seconds: float) -> bool:
        """Waits, but not past the stop. False once this instance is asked to stop."""
        with term.subscribe_stop() as stop, monotonic_clock.subscribe_duration(int(seconds * 1e9)) as timer:
            poll.poll([stop, timer])
        return term.stop_requested() is None

    def log(self, line: str) -> None:
        """Has the host log a line."""
        print(line, flush=True)

    def progress(self) -> None:
        """Tells that useful work was done."""
        term.progress()

    def get(self, key: str) -> bytes | None:
        """The value under a key."""
        return state.get(key)

    def put(self, key: str, value: bytes) -> None:
        """Saves a value; returns once the store has confirmed it."""
        state.commit([state.Change_Put((key, value))])


class Task(exports.Task):
    def run(self) -> None:
        try:
            coordinator.run(Host())
        except Exception as error:
            # Raised as it is, anything else would be a trap. Failure_Fatal instead makes this node step down.
            traceback.print_exc()
            raise Err(Failure_Retryable(repr(error))) from error
