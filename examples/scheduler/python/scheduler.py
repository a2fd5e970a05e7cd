"""Hands partitions to workers, and saves their acknowledgements. See ../README.md."""

import json
import os
import re
import time
import traceback
from dataclasses import dataclass
from urllib.parse import urlsplit

from componentize_py_types import Err, Ok
from wit_world import exports
from wit_world.exports.task import Failure_Fatal, Failure_Retryable
from wit_world.imports import monotonic_clock, outgoing_handler, poll, state, streams, term
from wit_world.imports.types import Fields, Method_Post, OutgoingRequest, Scheme_Http, Scheme_Https

LARGEST_ANSWER = 1024


class Task(exports.Task):
    """The function that the host calls."""

    def run(self) -> None:
        try:
            with term.subscribe_stop() as stop:
                Scheduler(Settings.from_environment(os.environ), stop).run()
        except Stopped:
            print(f"asked to stop: {term.stop_message()}", flush=True)
        except Err:
            raise
        except Exception as error:
            # Convert all other exceptions: otherwise, they would be traps.
            traceback.print_exc()
            raise Err(Failure_Retryable(f"{error!r}")) from error


class Stopped(Exception):
    """The host has asked this instance to stop."""


class Refused(Exception):
    """A worker did not take a partition."""


@dataclass
class Settings:
    """The settings. A mistake is fatal, because a retry would fail with the same settings."""

    workers: list[str]
    partitions: int
    pause_ms: int
    timeout_ms: int

    @classmethod
    def from_environment(cls, env) -> "Settings":
        def whole(name: str, default: str) -> int:
            value = env.get(name, default)
            return int(value) if re.fullmatch("[0-9]{1,6}", value) else wrong(name, "100")

        def wrong(name: str, example: str):
            raise Err(Failure_Fatal(f"{name} is missing or wrong: --env {name}={example}"))

        workers = [worker.rstrip("/") for worker in env.get("WORKERS", "").split(",") if worker]
        if not workers or not all(re.match("https?://[^/]", worker) for worker in workers):
            wrong("WORKERS", "http://10.0.0.1:8080,http://10.0.0.2:8080")
        return cls(workers, whole("PARTITIONS", ""), whole("PAUSE_MS", "1000"), whole("TIMEOUT_MS", "10000"))


@dataclass
class Scheduler:
    settings: Settings
    stop: poll.Pollable

    def run(self) -> None:
        partitions = self.settings.partitions
        acknowledged = set(state.keys("partitions/"))
        todo = [n for n in range(partitions) if f"partitions/{n}" not in acknowledged]
        print(f"term {term.number()}: {partitions - len(todo)} of {partitions} partitions are acknowledged", flush=True)
        for partition in todo:
            worker, taken_in = self.hand_over(partition)
            save(partition, worker, taken_in)
            print(f"partition {partition} was taken by {worker} in term {taken_in}", flush=True)
        print(f"all {partitions} partitions are acknowledged", flush=True)

    def hand_over(self, partition: int) -> tuple[str, int]:
        """Offers a partition to one worker after another, starting with its own worker, until a worker takes it."""
        attempt = 0
        while True:
            workers = self.settings.workers
            worker = workers[(partition + attempt) % len(workers)]
            try:
                return worker, self.offer(worker, partition)
            except Refused as why:
                print(f"{worker} did not take partition {partition}: {why}", flush=True)
            attempt += 1
            self.wait(time.monotonic() + self.settings.pause_ms / 1000)

    def offer(self, worker: str, partition: int) -> int:
        """Returns the term in which the worker took the partition, in this offer or an earlier one."""
        url = urlsplit(f"{worker}/partitions/{partition}")
        request = OutgoingRequest(Fields())
        request.set_method(Method_Post())
        request.set_scheme(Scheme_Https() if url.scheme == "https" else Scheme_Http())
        request.set_authority(url.netloc)
        request.set_path_with_query(url.path)
        try:
            status, text = self.send(request, time.monotonic() + self.settings.timeout_ms / 1000)
        except Err as error:
            raise Refused(f"{error.value}") from error
        if status != 200 or not re.fullmatch(b"[0-9]{1,15}", text):
            raise Refused(f"it answered {status} {text[:80]!r}")
        return int(text)

    def send(self, request: OutgoingRequest, deadline: float) -> tuple[int, bytes]:
        """Sends a request. Returns the status and body of the answer."""
        with outgoing_handler.handle(request, None) as answer:
            self.wait(deadline, answer)
            match answer.get():
                case Ok(Ok(response)):
                    pass
                case Ok(Err() as error):
                    raise error
                case other:
                    raise Refused(f"the host gave {other}")
        with response, response.consume() as body, body.stream() as stream:
            text = b""
            while len(text) <= LARGEST_ANSWER:
                self.wait(deadline, stream)
                try:
                    text += stream.read(LARGEST_ANSWER)
                except Err as error:
                    if error.value == streams.StreamError_Closed():
                        return response.status(), text
                    raise Refused("the answer was cut off") from error
            raise Refused("the answer is too long")

    def wait(self, deadline: float, source=None) -> None:
        """Waits until the source is ready, or without a source, until the deadline. Fails if a stop request arrives."""
        left = max(0, int((deadline - time.monotonic()) * 1e9))
        with monotonic_clock.subscribe_duration(left) as timer:
            if source is None:
                ready = poll.poll([self.stop, timer])
            else:
                with source.subscribe() as pollable:
                    ready = poll.poll([self.stop, timer, pollable])
        if 0 in ready:
            raise Stopped
        if source is not None and 2 not in ready:
            raise Refused(f"no answer within {self.settings.timeout_ms} ms")


def save(partition: int, worker: str, taken_in: int) -> None:
    """Saves an acknowledgement. Once it is saved, no term offers the partition again."""
    value = json.dumps({"worker": worker, "term": taken_in}, separators=(",", ":"))
    try:
        state.commit([state.Change_Put((f"partitions/{partition}", value.encode()))])
    except Err as error:
        # The next instance finds out from the state whether this commit was saved.
        raise Err(Failure_Retryable(f"partition {partition} is not acknowledged: {error.value.value}")) from error
    term.progress()
