import json
import unittest

import coordinator


class FakeHost:
    """A host for a test: its sleeps take no time, and after so many of them comes the stop."""

    def __init__(self) -> None:
        self.term_number = 0
        self.values = {}

    def run(self, sleeps: int) -> None:
        self.term_number += 1
        self.sleeps = sleeps
        coordinator.run(self)

    def sleep(self, seconds: float) -> bool:
        self.sleeps -= 1
        return self.sleeps >= 0

    def log(self, line: str) -> None:
        pass

    def progress(self) -> None:
        pass

    def get(self, key: str) -> bytes | None:
        return self.values.get(key)

    def put(self, key: str, value: bytes) -> None:
        self.values[key] = value


class CoordinatorTest(unittest.TestCase):
    def test_a_term_goes_on_where_the_one_before_it_ended(self) -> None:
        host = FakeHost()
        for beats in [60, 120]:
            host.run(sleeps=60)
            self.assertEqual(json.loads(host.values["beats"]), beats)


if __name__ == "__main__":
    unittest.main()
