// Beats once a second, and counts the beats in the state: the next term goes on from there, on whichever node
// it runs.

export function run({ term, state, sleep, log }) {
  let beats = JSON.parse(decode(state.get('beats')) ?? '0');
  log(`term ${term.number()} goes on from beat ${beats}`);
  while (sleep(1000)) {
    beats += 1;
    state.commit([{ tag: 'put', val: ['beats', encode(JSON.stringify(beats))] }]);
    log(`beat ${beats}`);
    term.progress();
  }
}

const encode = (text) => new TextEncoder().encode(text);
const decode = (bytes) => bytes && new TextDecoder().decode(bytes);
