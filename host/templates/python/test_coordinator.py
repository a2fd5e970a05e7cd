import unittest

import coordinator


class FakeHost:
    """A host for a test. Its sleeps take no time, and the stop comes after a number of them."""

    def __init__(self) -> None:
        self.term = 0
        self.settings = {"URL": "http://server/stock.json"}
        self.state = {}

    def run(self, sleeps: int) -> None:
        self.term += 1
        self.sleeps = sleeps
        coordinator.run(self)

    def sleep(self, seconds: float) -> bool:
        self.sleeps -= 1
        return self.sleeps >= 0

    def fetch(self, url: str):
        return self

    def json(self):
        return {"stock": 7}

    def get(self, key: str):
        return self.state.get(key)

    def put(self, values: dict) -> None:
        self.state.update(values)

    def log(self, line: str) -> None:
        pass

    def progress(self) -> None:
        pass


class CoordinatorTest(unittest.TestCase):
    def test_terms_continue_the_count_and_keep_the_answer(self) -> None:
        host = FakeHost()
        for beats in [60, 120]:
            host.run(sleeps=60)
            self.assertEqual(host.state, {"beats": beats, "answer": {"stock": 7}})


if __name__ == "__main__":
    unittest.main()
