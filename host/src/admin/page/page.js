'use strict';
(() => {
  // What comes from others is only ever put into the page as text: the policy that the page is served with has no way to
  // make markup of it.
  const $ = (id) => document.getElementById(id);
  const make = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) if (value !== undefined && value !== false) made.setAttribute(name, value);
    made.append(...children);
    return made;
  };
  const say = (node, text) => { if (node.textContent !== text) node.textContent = text; };
  const show = (node, is) => { if (node.hidden === is) node.hidden = !is; };
  const set = (node, name, value) => { if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value); };
  const wait = (ms) => new Promise((done) => setTimeout(done, ms));

  const LEVELS = ['trace', 'debug', 'info', 'warn', 'error', 'critical'];
  const LINES = 500;
  // A node that is there says so each minute.
  const SILENT = 180e3;

  let token = '';
  let me = '';
  let elections = [];
  let nodes = [];
  let terms = [];
  let told = 0; // When the elections were last told, by this page's clock.
  let tried = 0;
  let trouble = '';
  let term = null; // The one that is shown in words.
  let hasRefused = false;

  // ------------------------------------------------------------------ asking

  class Refused extends Error {
    constructor(status, text) { super(text.trim() || `status ${status}`); this.status = status; }
  }
  const headers = (more = {}) => (token ? { ...more, Authorization: `Bearer ${token}` } : more);
  async function ask(path, options = {}) {
    const answer = await fetch(path, { cache: 'no-store', signal: AbortSignal.timeout(10e3), ...options, headers: headers(options.headers) });
    if (!answer.ok) throw new Refused(answer.status, await answer.text());
    return answer;
  }
  const get = async (path) => (await ask(path)).json();

  // Reads a stream of events until it ends, `last` being where it goes on.
  async function listen(path, last, each, signal) {
    const more = { Accept: 'text/event-stream', ...(last.id ? { 'Last-Event-ID': last.id } : {}) };
    const answer = await fetch(path, { cache: 'no-store', headers: headers(more), signal });
    if (!answer.ok) throw new Refused(answer.status, await answer.text());
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split('\n\n');
      rest = blocks.pop();
      for (const block of blocks) {
        const sent = { data: '' };
        for (const line of block.split('\n')) {
          const at = line.indexOf(': ');
          if (at > 0) sent[line.slice(0, at)] = line.slice(at + 2);
        }
        if (sent.id) last.id = sent.id;
        if (sent.data) each(sent.event || '', JSON.parse(sent.data));
      }
    }
  }

  // What this node can be asked. Hosts of other versions have this page, too, and other paths.
  let paths = null;
  const can = (what) => Boolean(paths?.[`/v1/elections/{election}/${what}`]);

  // ------------------------------------------------------------------ words

  const length = (seconds) => {
    if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
    if (seconds < 10) return `${seconds.toFixed(1)} s`;
    if (seconds < 120) return `${Math.round(seconds)} s`;
    if (seconds < 7200) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
    if (seconds < 172800) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
    return `${Math.floor(seconds / 86400)} days`;
  };
  const bytes = (number) => {
    const units = ['B', 'KiB', 'MiB', 'GiB'];
    let unit = 0;
    while (number >= 1024 && unit < 3) { number /= 1024; unit += 1; }
    return `${number < 10 && unit ? number.toFixed(1) : Math.round(number)} ${units[unit]}`;
  };
  const clock = (text) => {
    const at = new Date(text);
    return Number.isNaN(at.getTime()) ? String(text).slice(0, 30) : at.toLocaleTimeString(undefined, { hour12: false });
  };
  const day = (text) => {
    const at = new Date(text);
    return Number.isNaN(at.getTime()) ? String(text).slice(0, 30) : at.toLocaleString(undefined, { hour12: false, dateStyle: 'short', timeStyle: 'medium' });
  };
  const short = (digest) => (digest ? digest.replace('sha256:', '').slice(0, 12) : '–');
  const hue = (name) => { let sum = 0; for (const c of name) sum = (sum * 31 + c.codePointAt(0)) >>> 0; return `var(--h${sum % 8})`; };

  // ------------------------------------------------------------------ which election

  const chosen = () => {
    let name = '';
    try { name = decodeURIComponent(location.hash.slice(1)); } catch { /* somebody's own making */ }
    return elections.find((one) => one.election === name) ?? elections[0];
  };
  const path = (election, what) => `v1/elections/${encodeURIComponent(election)}/${what}`;
  const of = (election) => nodes.filter((one) => one.election === election);
  const leaderOf = (one) => (one.leads ? me : one.leader);
  const page = (node) => {
    const text = node?.admin ?? '';
    return /^https?:\/\//.test(text) ? `${text.replace(/\/+$/, '')}/` : '';
  };
  const why = { suspended: 'suspended', 'stepped-down': 'stepped down', transferring: 'makes room for another', 'cooling-off': 'cools off', away: 'its machine is about to be interrupted' };
  const isSuspended = (election) => of(election).some((node) => node.stays_out === 'suspended');

  // ------------------------------------------------------------------ showing

  // Keeps the children of a node in step with a list: who has the focus keeps it.
  function keep(parent, list, key, create, update) {
    const before = new Map([...parent.children].map((child) => [child.dataset.key, child]));
    let at = parent.firstElementChild;
    for (const item of list) {
      const name = key(item);
      let child = before.get(name);
      before.delete(name);
      if (!child) { child = create(item); child.dataset.key = name; }
      update(child, item);
      if (child === at) at = at.nextElementSibling; else parent.insertBefore(child, at);
    }
    for (const child of before.values()) child.remove();
  }

  function bar(node, left, whole) {
    const part = Math.max(0, Math.min(1, whole > 0 ? left / whole : 0));
    node.style.setProperty('--part', part.toFixed(4));
    node.classList.toggle('low', part < 0.5);
    node.classList.toggle('least', part < 0.25);
  }

  // The deadline comes at 0.8 of the lease after a renewal was sent.
  const whole = (one) => 0.8 * one.lease_s;
  const left = (one) => Math.max(0, one.remaining_s - (performance.now() - told) / 1000);

  function showCards() {
    const current = chosen()?.election;
    keep($('elections'), elections, (one) => one.election, (one) => {
      const card = make('a', { class: 'card', href: `#${encodeURIComponent(one.election)}` }, make('b'), make('span'), make('div', { class: 'bar', 'aria-hidden': 'true' }, make('i')));
      card.firstChild.textContent = one.election;
      return card;
    }, (card, one) => {
      const leader = leaderOf(one);
      say(card.children[1], leader ? `${leader}${one.leads ? ', here' : ''} · term ${one.term}` : 'nobody leads');
      set(card, 'aria-current', one.election === current);
      show(card.children[2], one.leads);
    });
  }

  function showHero(one) {
    const leader = leaderOf(one);
    say($('detail-name'), one.election);
    say($('detail-leader'), leader ?? 'Nobody leads');
    $('detail-leader').classList.toggle('nobody', !leader);
    const suspended = isSuspended(one.election) || /suspend/.test(one.stays_out ?? '');
    const notes = [];
    if (leader) notes.push(one.leads ? (one.serves ? 'leads here, and its instance runs' : 'leads here; no instance runs') : 'leads');
    notes.push(`term ${one.term}`);
    if (one.module) notes.push(`module ${short(one.module)}`);
    if (one.stays_out) notes.push(one.stays_out);
    else if (suspended) notes.push('suspended: no node leads until it is resumed');
    if (!one.ready) notes.push('this node is not ready yet');
    say($('detail-note'), notes.join(' · '));
    show($('deadline'), one.leads);
    const at = of(one.election).find((node) => node.node === leader);
    const href = page(at);
    show($('elsewhere'), !one.leads && Boolean(leader));
    if (!one.leads && leader) {
      const key = `${leader} ${href}`;
      if ($('elsewhere').dataset.key !== key) {
        $('elsewhere').dataset.key = key;
        $('elsewhere').replaceChildren('The deadline, what is used, and the coordinator’s log are on the page of ');
        $('elsewhere').append(href ? make('a', { href, rel: 'noreferrer' }, leader) : `${leader}, which does not say where that is (--admin-advertise)`, '.');
      }
    }
    const buttons = document.querySelectorAll('[data-action]');
    for (const button of buttons) {
      const action = button.dataset.action;
      const is = action === 'rollback' || (action === 'resume') === suspended;
      show(button, is && can(action));
    }
    show(document.querySelector('.actions'), [...buttons].some((button) => !button.hidden));
  }

  function showNodes(one) {
    const leader = leaderOf(one);
    const list = of(one.election).sort((a, b) => (a.node < b.node ? -1 : 1));
    keep($('nodes'), list, (node) => `${node.node} ${node.incarnation}`, () => {
      const row = make('tr');
      for (let cell = 0; cell < 7; cell += 1) row.append(make('td'));
      row.children[0].append(make('span'), make('span', { class: 'labels' }));
      row.children[1].append(make('span', { class: 'role' }));
      row.children[2].className = 'num';
      row.children[4].append(make('code'));
      row.children[5].className = 'num';
      return row;
    }, (row, node) => {
      const age = Date.now() - Date.parse(node.at);
      const isSilent = !(age < SILENT);
      const isFull = node.leads_enough && node.node !== leader;
      const role = node.node === leader ? 'leader' : isSilent ? 'silent' : node.stays_out ? (why[node.stays_out] ?? node.stays_out) : isFull ? 'leads enough elections' : 'standby';
      const [name, labels] = row.children[0].children;
      say(labels, Object.entries(node.labels ?? {}).map(([label, value]) => `${label}=${value}`).join(' '));
      say(name, node.node + (node.node === me ? ' (this one)' : '') + (node.rival ? ' – two hosts say this id' : ''));
      const pill = row.children[1].firstChild;
      say(pill, role);
      pill.className = `role${role === 'leader' ? ' leader-role' : isSilent ? ' silent' : node.stays_out || isFull ? ' out' : ''}`;
      say(row.children[2], String(node.priority ?? '–'));
      say(row.children[3], node.version || '–');
      say(row.children[4].firstChild, short(node.runs ?? node.holds?.[0]));
      set(row.children[4], 'title', node.runs ?? node.holds?.[0] ?? '');
      say(row.children[5], Number.isNaN(age) ? '–' : age < 2000 ? 'now' : `${length(age / 1000)} ago`);
      const href = page(node);
      if (row.children[6].dataset.href !== href) {
        row.children[6].dataset.href = href;
        row.children[6].replaceChildren(...(href && node.node !== me ? [make('a', { href, rel: 'noreferrer', 'aria-label': `page of ${node.node}` }, 'open')] : ['–']));
      }
    });
  }

  function showUsage(one) {
    const used = one.usage;
    show($('usage-panel'), Boolean(used));
    if (!used) return;
    const process = used.process ?? {};
    say($('usage-sub'), `process ${process.pid ?? '–'}, ${bytes(process.memory ?? 0)}, ${length((process.cpu_ms ?? 0) / 1000)} of processor time`);
    const rows = [['memory', 'memory', bytes], ['handles', 'handles', String], ['files', 'open files', String], ['requests', 'requests', String], ['instances', 'core instances', String], ['table_elements', 'table elements', String]];
    keep($('usage'), rows.filter(([name]) => used[name]), ([name]) => name, ([, label]) => {
      const meter = make('div', { class: 'bar', role: 'meter', 'aria-label': label, 'aria-valuemin': '0' }, make('i'));
      return make('div', {}, make('dt', {}, label), make('dd', {}, make('span'), meter));
    }, (row, [name, , words]) => {
      const { used: now, limit } = used[name];
      const [text, meter] = row.lastChild.children;
      say(text, `${words(now)} of ${words(limit)}`);
      set(meter, 'aria-valuemax', limit);
      set(meter, 'aria-valuenow', now);
      set(meter, 'aria-valuetext', `${words(now)} of ${words(limit)}`);
      const part = limit > 0 ? now / limit : 0;
      meter.style.setProperty('--part', Math.max(0, Math.min(1, part)).toFixed(4));
      meter.classList.toggle('low', part > 0.7);
      meter.classList.toggle('least', part > 0.9);
    });
  }

  const led = (row) => Math.max(0, ((row.ended ? Date.parse(row.ended) : Date.now()) - Date.parse(row.begun)) / 1000) || 0;
  const end = (row) => {
    if (!row.ended) return 'goes on';
    const what = [row.outcome, row.reason].filter(Boolean).join(': ');
    return `${what || 'ended'}${row.closed_by ? `, as ${row.closed_by} tells` : ''}`;
  };
  const isBad = (row) => Boolean(row.ended) && (Boolean(row.closed_by) || ['failed', 'fatal', 'killed'].includes(row.outcome));
  const inWords = (row) => [
    `Term ${row.term} of ${row.node}`,
    row.leaderless_s ? `nobody had led for ${length(row.leaderless_s)}` : '',
    `began ${day(row.begun)}`,
    `${row.ended ? 'led' : 'leads since'} ${length(led(row))}`,
    end(row),
  ].filter(Boolean).join(' · ');

  function showTerms() {
    show($('history-panel'), terms.length > 0);
    if (!terms.length) return;
    const shown = terms.slice(0, 40).reverse();
    const parts = shown.flatMap((row) => (row.leaderless_s ? [{ gap: row.leaderless_s, row }, { row }] : [{ row }]));
    say($('history-sub'), `${terms.length} of them; stripes are times in which nobody led`);
    // Roots, since seconds and days are to be seen beside each other.
    keep($('timeline'), parts, (part) => (part.gap ? `gap ${part.row.term}` : `term ${part.row.term}`), (part) => {
      if (part.gap) return make('li', { class: 'gap' });
      const button = make('button', { type: 'button', 'aria-pressed': 'false' });
      const choose = () => { term = part.row.term; showTerms(); };
      button.addEventListener('click', choose);
      button.addEventListener('focus', choose);
      button.addEventListener('pointerenter', choose);
      return make('li', {}, button);
    }, (item, part) => {
      const seconds = part.gap ?? led(part.row);
      item.style.setProperty('flex-grow', Math.max(part.gap ? 0 : 0.2, Math.sqrt(seconds)).toFixed(3));
      if (part.gap) { set(item, 'title', `nobody led for ${length(part.gap)}`); return; }
      const button = item.firstChild;
      button.style.setProperty('--hue', hue(part.row.node));
      set(button, 'data-end', !part.row.ended ? 'open' : isBad(part.row) ? 'bad' : 'good');
      set(button, 'aria-label', inWords(part.row));
      set(button, 'aria-pressed', part.row.term === term);
      say(button, `${part.row.term} ${part.row.node}`);
    });
    const row = terms.find((one) => one.term === term) ?? terms[0];
    say($('term-text'), inWords(row));
    keep($('terms'), terms, (one) => String(one.term), () => {
      const made = make('tr');
      for (let cell = 0; cell < 6; cell += 1) made.append(make('td', cell === 2 || cell === 3 || cell === 4 ? { class: 'num' } : {}));
      return made;
    }, (made, one) => {
      const texts = [String(one.term), one.node, day(one.begun), length(led(one)), one.leaderless_s ? length(one.leaderless_s) : '–', end(one)];
      texts.forEach((text, cell) => say(made.children[cell], text));
    });
  }

  // Lines that have come for a list, and that are not in it yet. Each change of a list has the browser lay the page out, so
  // that a coordinator that prints much would leave it no time for anything else.
  const come = new Map();
  function line(list, level, at, tag, parts) {
    const lines = come.get(list) ?? [];
    if (!lines.length) { come.set(list, lines); setTimeout(() => append(list), 250); }
    const text = make('span', { class: 'text' }, ...parts);
    lines.push(make('li', { 'data-level': level }, make('time', {}, at), make('span', { class: 'tag' }, tag), text));
    if (lines.length > LINES) lines.shift();
  }
  function append(list) {
    const lines = come.get(list) ?? [];
    come.delete(list);
    const isAtEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
    list.append(...lines);
    while (list.children.length > LINES) list.firstChild.remove();
    if (isAtEnd) list.scrollTop = list.scrollHeight;
  }
  function empty(list) {
    come.delete(list);
    list.replaceChildren();
  }

  function showLive() {
    const age = performance.now() - (told || tried);
    const state = hasRefused ? 'stale' : !told ? (trouble ? 'stale' : 'wait') : age < 5000 ? 'live' : 'stale';
    set($('live'), 'data-state', state);
    say($('live-text'), hasRefused ? 'not told' : state === 'live' ? 'live' : state === 'wait' ? 'connecting' : told ? 'stale' : 'no answer');
    document.body.classList.toggle('stale', state === 'stale' && told > 0);
    const text = hasRefused ? trouble : state === 'stale' ? `${me || 'The node'} has not answered ${told ? `for ${length(age / 1000)}: what is shown is old` : ''}. Trying again.` : '';
    show($('banner'), Boolean(text));
    if (text) say($('banner'), text);
    say($('unlock'), token ? 'Forget the token' : 'Token…');
  }

  function showDeadline() {
    const one = chosen();
    if (one?.leads) {
      const seconds = left(one);
      bar($('deadline-bar'), seconds, whole(one));
      set($('deadline-bar'), 'aria-valuemax', whole(one).toFixed(1));
      set($('deadline-bar'), 'aria-valuenow', seconds.toFixed(1));
      set($('deadline-bar'), 'aria-valuetext', `${seconds.toFixed(1)} s`);
      say($('deadline-text'), performance.now() - told < 5000 ? `${seconds.toFixed(1)} s` : '–');
    }
    elections.forEach((each, at) => {
      const card = $('elections').children[at];
      if (card && each.leads) bar(card.children[2], left(each), whole(each));
    });
  }

  function showAll() {
    const one = chosen();
    say($('node'), me || '…');
    document.title = one ? `${leaderOf(one) ?? 'nobody'} · ${one.election} · Baton` : 'Baton';
    show($('detail'), Boolean(one));
    show($('none'), told > 0 && !one);
    if (told > 0 && !one) say($('none'), 'This node takes part in no election.');
    if (one) { showCards(); showHero(one); showNodes(one); showUsage(one); say($('events-node'), me); }
    showLive();
    showDeadline();
  }

  // ------------------------------------------------------------------ what goes on

  let nudge = () => {};
  async function watchElections() {
    for (;;) {
      tried ||= performance.now();
      try {
        const now = await get('v1/elections');
        elections = now;
        me = now[0]?.node ?? me;
        told = performance.now();
        trouble = '';
        hasRefused = false;
      } catch (error) {
        hasRefused = error instanceof Refused;
        trouble = error.message;
        if (hasRefused && error.status === 401) elections = [];
      }
      showAll();
      const pause = document.hidden ? 5000 : trouble ? 2000 : 1000;
      await Promise.race([wait(pause), new Promise((done) => { nudge = done; })]);
    }
  }

  let nudgeNodes = () => {};
  async function watchStore() {
    for (;;) {
      let pause = 5000;
      if (told && !trouble) {
        try {
          paths ??= (await get('v1/openapi.json')).paths;
          nodes = await get('v1/nodes');
          const one = chosen();
          if (one && can('history')) { terms = await get(`${path(one.election, 'history')}?limit=100`); showTerms(); }
          showAll();
        } catch { /* Shown by what is old, and asked again. */ }
      } else pause = 500;
      await Promise.race([wait(pause), new Promise((done) => { nudgeNodes = done; })]);
    }
  }

  // What has changed is asked for at once, and what the store has a moment later, too.
  let late = 0;
  function changed() {
    nudge();
    nudgeNodes();
    clearTimeout(late);
    late = setTimeout(() => { nudge(); nudgeNodes(); }, 5200);
  }

  let events = null;
  async function watchEvents() {
    const last = {};
    for (;;) {
      if (told && !trouble) {
        try {
          events = new AbortController();
          await listen('v1/events?tail=60', last, (kind, event) => {
            if (kind === 'lost') { line($('events'), 'lost', '', '', [`${event.lost} events were lost`]); return; }
            const who = [event.election, event.term ? `term ${event.term}` : ''].filter(Boolean).join(' ');
            line($('events'), event.level, clock(event.ts), event.level, [make('b', {}, event.event), ` ${who ? `(${who}) ` : ''}${event.says ?? ''}`]);
            changed();
          }, events.signal);
        } catch { /* It is tried again; that the node does not answer is shown by another. */ }
      }
      await wait(1000);
    }
  }

  let logs = null; // What is read now: of which election, from which level, with which token.
  async function watchLogs() {
    const last = {};
    let of = '';
    for (;;) {
      const one = chosen();
      const level = $('level').value;
      const wanted = one ? `${one.election} ${level} ${token}` : '';
      if (of !== wanted) { of = wanted; last.id = ''; empty($('logs')); }
      say($('logs-sub'), `as ${me} has it`);
      let note = '';
      if (!one || trouble) note = '';
      else if (!token) note = 'What coordinators print is told with the token of --admin-token-file.';
      else {
        logs = new AbortController();
        try {
          say($('logs-note'), one.leads ? '' : 'This node does not lead: what its own instances have printed is all it has.');
          await listen(`${path(one.election, 'logs')}?tail=200&level=${level}`, last, (kind, entry) => {
            if (kind === 'lost') { line($('logs'), 'lost', '', '', [`${entry.lost} lines were lost`]); return; }
            const tag = { stdout: 'out', stderr: 'err' }[entry.stream] ?? entry.level;
            const parts = entry.line === undefined ? [make('b', {}, entry.event), ` ${entry.says ?? ''}`] : entry.context ? [make('b', {}, entry.context), ` ${entry.line}`] : [entry.line];
            line($('logs'), entry.level, clock(entry.ts), tag, parts);
          }, logs.signal);
        } catch (error) {
          if (error instanceof Refused) {
            note = error.message;
            if (error.status === 401) token = '';
          }
        }
      }
      show($('logs-note'), true);
      if (note || !token) say($('logs-note'), note);
      await wait(500);
    }
  }
  const reread = () => logs?.abort();
  const reconnect = () => { reread(); events?.abort(); };

  // ------------------------------------------------------------------ steering

  const ACTIONS = {
    'step-down': { title: 'Step down', text: (one) => `The leader of ${one.election} asks its instance to stop, and gives the lease up. Another node takes over.`, fields: ['for', 'why'] },
    transfer: { title: 'Transfer', text: (one) => `The leader of ${one.election} makes room, and the node that you name takes over. If it does not take the lease soon, the old one may go on.`, fields: ['to', 'why'] },
    suspend: { title: 'Suspend', text: (one) => `Nobody leads ${one.election} until it is resumed.`, fields: ['why'] },
    resume: { title: 'Resume', text: (one) => `Nodes contend for ${one.election} again.`, fields: [] },
    rollback: { title: 'Roll back', text: (one) => `An earlier version of ${one.election}’s module becomes the current one, and every node changes over.`, fields: ['which', 'why'] },
    token: { title: 'Token', text: () => 'What coordinators print, and what changes something, needs the token. It is kept until this page is closed.', fields: [] },
  };
  let asking = null;
  function open(name) {
    const one = chosen();
    const action = ACTIONS[name];
    if (!action || (!one && name !== 'token')) return;
    asking = { name, election: one?.election };
    say($('ask-title'), one && name !== 'token' ? `${action.title}: ${one.election}` : action.title);
    say($('ask-text'), action.text(one));
    for (const field of ['to', 'for', 'which', 'why']) show($(`ask-${field}`), action.fields.includes(field));
    const others = one ? of(one.election).map((node) => node.node).filter((node) => node !== leaderOf(one)) : [];
    $('ask-node').replaceChildren(...[...new Set(others)].map((node) => make('option', {}, node)));
    $('ask-token').value = token;
    $('ask-reason').value = '';
    $('ask-digest').value = '';
    say($('ask-go'), name === 'token' ? 'Use it' : action.title);
    show($('ask-error'), false);
    $('ask').showModal();
  }
  let fading = 0;
  function toast(text, failed) {
    say($('toast'), text);
    $('toast').classList.toggle('failed', failed);
    show($('toast'), true);
    clearTimeout(fading);
    fading = setTimeout(() => show($('toast'), false), 12e3);
  }
  async function go() {
    const { name, election } = asking;
    const given = $('ask-token').value.trim();
    const reason = $('ask-reason').value.trim();
    // What it is sent over could be read by others.
    if (!isSecureContext) { say($('ask-error'), 'The token is not sent over plain HTTP: open this page with https.'); show($('ask-error'), true); return; }
    if (name === 'token') { token = given; $('ask').close(); reconnect(); nudge(); return; }
    const body = {};
    if (reason && ACTIONS[name].fields.includes('why')) body.reason = reason;
    if (name === 'step-down') body.for_s = Number($('ask-seconds').value);
    if (name === 'transfer') body.to = $('ask-node').value;
    if (name === 'rollback' && $('ask-digest').value.trim()) body.digest = $('ask-digest').value.trim();
    $('ask-go').disabled = true;
    show($('ask-error'), false);
    try {
      const answer = await fetch(path(election, name), {
        method: 'POST', cache: 'no-store', signal: AbortSignal.timeout(58e3), body: JSON.stringify(body),
        headers: { Authorization: `Bearer ${given}`, 'Content-Type': 'application/json' },
      });
      const text = await answer.text();
      let said = text.trim();
      try { said = JSON.parse(text).told ?? said; } catch { /* It is text. */ }
      if (!answer.ok) throw new Refused(answer.status, said);
      if (token !== given) { token = given; reconnect(); }
      $('ask').close();
      toast(said || 'done', false);
      changed();
    } catch (error) {
      say($('ask-error'), error.message);
      show($('ask-error'), true);
    } finally {
      $('ask-go').disabled = false;
    }
  }
  for (const button of document.querySelectorAll('[data-action]')) button.addEventListener('click', () => open(button.dataset.action));
  $('unlock').addEventListener('click', () => { if (token) { token = ''; reconnect(); showLive(); } else open('token'); });
  $('ask-cancel').addEventListener('click', () => $('ask').close());
  $('ask-form').addEventListener('submit', (event) => { event.preventDefault(); go(); });
  $('level').addEventListener('change', reread);
  addEventListener('hashchange', () => { terms = []; term = null; $('timeline').replaceChildren(); $('terms').replaceChildren(); showTerms(); reread(); showAll(); nudgeNodes(); });
  document.addEventListener('visibilitychange', () => { if (!document.hidden) nudge(); });

  // ------------------------------------------------------------------ colours

  const themes = ['auto', 'light', 'dark'];
  const marks = { auto: ['◐', 'as the system has them'], light: ['☀', 'light'], dark: ['☾', 'dark'] };
  const remembered = () => { try { return localStorage.getItem('baton-theme') ?? 'auto'; } catch { return 'auto'; } };
  function paint(theme) {
    document.documentElement.dataset.theme = theme;
    say($('theme'), marks[theme][0]);
    set($('theme'), 'aria-label', `Colours: ${marks[theme][1]}`);
  }
  paint(themes.includes(remembered()) ? remembered() : 'auto');
  $('theme').addEventListener('click', () => {
    const next = themes[(themes.indexOf(document.documentElement.dataset.theme) + 1) % themes.length];
    try { localStorage.setItem('baton-theme', next); } catch { /* It is forgotten, then. */ }
    paint(next);
  });

  setInterval(() => { showLive(); showDeadline(); }, 250);
  watchElections();
  watchStore();
  watchEvents();
  watchLogs();
})();
