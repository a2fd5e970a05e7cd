// Connects `coordinator.js` to the host, whose interfaces are in `wit`.

import { getEnvironment } from 'wasi:cli/environment@0.2.0';
import { subscribeDuration } from 'wasi:clocks/monotonic-clock@0.2.0';
import { poll } from 'wasi:io/poll@0.2.0';
import * as schedule from 'baton:host/schedule@0.1.1';
import * as state from 'baton:host/state@0.1.1';
import * as term from 'baton:host/term@0.1.1';

import { run } from './coordinator.js';

export const task = {
  async run() {
    try {
      // The settings are those of `env`, `config-var` and `secret` in baton.toml.
      const settings = Object.fromEntries(getEnvironment());
      await run({ term, settings, scheduledFor, sleep, fetchJson, get, put, log: console.log });
    } catch (error) {
      console.error(error?.stack?.trim() ?? 'no stack: the thrown value is not an Error');
      // `fatal` instead of `retryable` makes this node hand leadership to another one.
      throw { tag: 'retryable', val: describe(error) };
    }
  },
};

/** Returns the due time of this run, if `schedule` in baton.toml is set. A repeated run has the same due time. */
function scheduledFor() {
  const seconds = schedule.scheduledFor();
  return seconds === undefined ? undefined : new Date(Number(seconds) * 1000);
}

/** Waits. Returns false, at once, when the host asks this instance to stop. */
function sleep(milliseconds) {
  poll([term.subscribeStop(), subscribeDuration(BigInt(milliseconds) * 1_000_000n)]);
  return term.stopRequested() === undefined;
}

/** Fetches JSON. The host sends requests only to servers that `allow-http` in baton.toml names. */
async function fetchJson(url) {
  const failure = new Error(); // Created here, because errors of `fetch` do not contain the caller's line.
  try {
    const response = await fetch(url);
    if (!response.ok) throw new Error(`HTTP status ${response.status}`);
    return await response.json();
  } catch (error) {
    failure.message = `${url}: ${error.message}`;
    throw failure;
  }
}

/** Returns the value from an earlier commit of this or an earlier term, if any. */
function get(key) {
  const bytes = state.get(key);
  return bytes && JSON.parse(new TextDecoder().decode(bytes));
}

/** Saves values by their keys, all or none. Returns once the store has confirmed them. */
function put(values) {
  const encode = (value) => new TextEncoder().encode(JSON.stringify(value));
  state.commit(Object.entries(values).map(([key, value]) => ({ tag: 'put', val: [key, encode(value)] })));
}

/** Describes an error, with the coordinator's first line in its stack. */
function describe(error) {
  const text = error?.payload ? `${error.payload.tag}: ${error.payload.val}` : `${error}`;
  const line = /@(?!main\.js|\/)(.+:\d+):\d+$/m.exec(error?.stack ?? '');
  return line ? `${text} (${line[1]})` : text;
}
