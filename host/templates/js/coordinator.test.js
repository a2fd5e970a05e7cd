import assert from 'node:assert/strict';
import { test } from 'node:test';

import { run } from './coordinator.js';

/** A host for a test: its sleeps take no time, and after so many of them comes the stop. */
class FakeHost {
  values = new Map();
  terms = 0;

  run(sleeps) {
    this.terms += 1;
    run({
      term: { number: () => BigInt(this.terms), progress() {} },
      state: {
        get: (key) => this.values.get(key),
        commit: (changes) => changes.forEach(({ val: [key, value] }) => this.values.set(key, value)),
      },
      sleep: () => sleeps-- > 0,
      log() {},
    });
  }

  saved(key) {
    return JSON.parse(new TextDecoder().decode(this.values.get(key)));
  }
}

test('a term goes on where the one before it ended', () => {
  const host = new FakeHost();
  for (const beats of [60, 120]) {
    host.run(60);
    assert.equal(host.saved('beats'), beats);
  }
});
