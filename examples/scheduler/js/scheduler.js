// Hands partitions to workers, and saves their acknowledgements. See ../README.md.

import { getEnvironment } from 'wasi:cli/environment@0.2.0';
import { subscribeDuration } from 'wasi:clocks/monotonic-clock@0.2.0';
import { poll } from 'wasi:io/poll@0.2.0';
import { commit, keys } from 'baton:host/state@0.1.1';
import { number, progress, stopMessage, stopRequested, subscribeStop } from 'baton:host/term@0.1.1';

/** Milliseconds between two checks for a stop request while an HTTP request is running. */
const LOOK_EVERY = 50;

async function run() {
  const settings = readSettings();
  const stop = subscribeStop();
  const open = withoutAcknowledgement(settings.partitions);
  console.log(`term ${number()}: ${settings.partitions - open.length} of ${settings.partitions} partitions are acknowledged`);
  for (const partition of open) {
    const acknowledged = await handOver(partition, settings, stop);
    if (!acknowledged) {
      console.log(`asked to stop: ${stopMessage()}`);
      return;
    }
    save(partition, acknowledged);
    console.log(`partition ${partition} was taken by ${acknowledged.worker} in term ${acknowledged.term}`);
  }
  console.log(`all ${settings.partitions} partitions are acknowledged`);
}

export const task = {
  async run() {
    try {
      await run();
    } catch (error) {
      // Convert all other exceptions: otherwise, they would be traps.
      throw error.tag ? error : { tag: 'retryable', val: `${error}` };
    }
  },
};

/** Reads the settings. A mistake is fatal, because a retry would fail with the same settings. */
function readSettings() {
  const env = Object.fromEntries(getEnvironment());
  const wrong = (name, example) => fatal(`${name} is missing or wrong: --env ${name}=${example}`);
  const whole = (name, value) => (/^[0-9]{1,6}$/.test(value ?? '') ? Number(value) : wrong(name, 100));
  const workers = (env.WORKERS ?? '').split(',').filter((worker) => worker !== '');
  if (workers.length === 0 || !workers.every((worker) => /^https?:\/\/[^/]/.test(worker))) {
    wrong('WORKERS', 'http://10.0.0.1:8080,http://10.0.0.2:8080');
  }
  return {
    workers: workers.map((worker) => worker.replace(/\/+$/, '')),
    partitions: whole('PARTITIONS', env.PARTITIONS),
    pause: whole('PAUSE_MS', env.PAUSE_MS ?? '1000'),
    timeout: whole('TIMEOUT_MS', env.TIMEOUT_MS ?? '10000'),
  };
}

function withoutAcknowledgement(partitions) {
  const acknowledged = new Set(keys('partitions/'));
  return Array.from({ length: partitions }, (_, partition) => partition).filter(
    (partition) => !acknowledged.has(`partitions/${partition}`),
  );
}

/**
 * Offers a partition to one worker after another, starting with its own worker, until a worker takes it.
 * Returns the acknowledgement, or undefined if the host asks this instance to stop.
 */
async function handOver(partition, { workers, pause, timeout }, stop) {
  for (let attempt = 0; ; attempt++) {
    if (attempt > 0) {
      poll([stop, subscribeDuration(BigInt(pause) * 1_000_000n)]);
    }
    if (stop.ready()) {
      return undefined;
    }
    const worker = workers[(partition + attempt) % workers.length];
    try {
      const term = await unlessStopped(offer(worker, partition), stop, timeout);
      return term === undefined ? undefined : { worker, term };
    } catch (error) {
      console.error(`${worker} did not take partition ${partition}: ${error.message}`);
    }
  }
}

/** Returns the term in which the worker took the partition, in this offer or an earlier one. */
async function offer(worker, partition) {
  const response = await fetch(`${worker}/partitions/${partition}`, { method: 'POST' });
  const text = await response.text();
  if (response.status !== 200 || !/^[0-9]{1,15}$/.test(text)) {
    throw new Error(`it answered ${response.status} ${text.slice(0, 80)}`);
  }
  return Number(text);
}

/**
 * Returns the result of the request, or undefined if the host asks this instance to stop. The event loop cannot wait
 * for the host's signal, so this function polls it.
 */
async function unlessStopped(request, stop, timeout) {
  const deadline = Date.now() + timeout;
  while (!stop.ready()) {
    const answer = await Promise.race([request, new Promise((resolve) => setTimeout(resolve, LOOK_EVERY))]);
    if (answer !== undefined) {
      return answer;
    }
    if (Date.now() > deadline) {
      throw new Error(`no answer within ${timeout} ms`);
    }
  }
  return undefined;
}

/** Saves an acknowledgement. Once it is saved, no term offers the partition again. */
function save(partition, acknowledged) {
  const value = new TextEncoder().encode(JSON.stringify(acknowledged));
  try {
    commit([{ tag: 'put', val: [`partitions/${partition}`, value] }]);
  } catch (error) {
    // The next instance finds out from the state whether this commit was saved.
    throw { tag: 'retryable', val: `partition ${partition} is not acknowledged: ${error.payload.val}` };
  }
  progress();
}

function fatal(message) {
  throw { tag: 'fatal', val: message };
}
