import assert from 'node:assert/strict';
import { test } from 'node:test';

import { run } from './coordinator.js';

/** A host for a test. Its sleeps take no time, and the stop comes after a number of them. */
class FakeHost {
  state = {};
  terms = 0;

  async run(sleeps) {
    this.terms += 1;
    await run({
      term: { number: () => BigInt(this.terms), progress() {} },
      settings: { URL: 'http://server/stock.json' },
      sleep: () => sleeps-- > 0,
      fetchJson: async () => ({ stock: 7 }),
      get: (key) => this.state[key],
      put: (changes) => Object.assign(this.state, changes),
      log() {},
    });
  }
}

test('terms continue the count and keep the answer', async () => {
  const host = new FakeHost();
  for (const beats of [60, 120]) {
    await host.run(60);
    assert.deepEqual(host.state, { beats, answer: { stock: 7 } });
  }
});
