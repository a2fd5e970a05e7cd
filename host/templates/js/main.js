// What the host calls, and what it offers: see wit/deps/baton-host.wit.

import { subscribeDuration } from 'wasi:clocks/monotonic-clock@0.2.0';
import { poll } from 'wasi:io/poll@0.2.0';
import * as state from 'baton:host/state@0.1.0';
import * as term from 'baton:host/term@0.1.0';

import { run } from './coordinator.js';

/** Waits, but not past the stop. False once this instance is asked to stop. */
function sleep(milliseconds) {
  poll([term.subscribeStop(), subscribeDuration(BigInt(milliseconds) * 1_000_000n)]);
  return term.stopRequested() === undefined;
}

export const task = {
  run() {
    try {
      run({ term, state, sleep, log: console.log });
    } catch (error) {
      // Thrown as it is, anything else would be a trap. `fatal` instead makes this node step down.
      const text = error?.payload ? `${error.payload.tag}: ${error.payload.val}` : `${error}`;
      throw { tag: 'retryable', val: text };
    }
  },
};
