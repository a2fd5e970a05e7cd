// Beats once a second and counts its beats in the state. The next term continues the count, on whichever node it runs.
// With the setting `URL`, each beat also fetches JSON from there.

export async function run({ term, settings, sleep, fetchJson, get, put, log }) {
  let beats = get('beats') ?? 0;
  log(`term ${term.number()} continues from beat ${beats}`);
  // The sleep ends early, with false, when the host asks this instance to stop.
  while (sleep(1000)) {
    beats += 1;
    const changes = { beats };
    if (settings.URL) {
      changes.answer = await fetchJson(settings.URL);
      log(`${settings.URL} answers ${JSON.stringify(changes.answer)}`);
    }
    put(changes);
    log(`beat ${beats}`);
    term.progress();
  }
}
