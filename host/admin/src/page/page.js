'use strict';
(() => {
  // Text from nodes enters the page only as text nodes and attributes. The page's policy forbids turning text into
  // markup.
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

  const LINES = 500;
  const TERMS = 100;
  // Time in ms after which a node without a new announcement counts as silent. A node announces itself once a minute.
  const SILENT = 180e3;
  const DAY = 86400e3;

  let token = '';
  let tokenTrouble = '';
  let me = '';
  let elections = [];
  let nodes = [];
  let terms = []; // The chosen election's terms, newest first.
  let answeredAt = 0; // When the last list of elections arrived, by performance.now().
  let tried = 0;
  let trouble = '';
  let term = null; // Number of the term that the caption describes.
  let hasRefused = false;

  // ------------------------------------------------------------------ requests

  class Refused extends Error {
    constructor(status, text) { super(text.trim() || `status ${status}`); this.status = status; }
  }
  const wrongToken = () => `This token is wrong: ${me || 'the node'} did not accept it. The token is in the file of --admin-token-file.`;
  const bearer = (given, more = {}) => (given ? { ...more, Authorization: `Bearer ${given}` } : more);
  // Throws if the answer is an error. If the node no longer accepts the token, also forgets the token and says so in
  // the banner.
  async function check(answer, used) {
    if (answer.ok) return answer;
    if (answer.status === 401 && used && used === token) {
      token = '';
      tokenTrouble = wrongToken();
      reconnect();
      showLive();
    }
    throw new Refused(answer.status, await answer.text());
  }
  async function ask(path) {
    const used = token;
    const answer = await fetch(path, { cache: 'no-store', signal: AbortSignal.timeout(10e3), headers: bearer(used) });
    return check(answer, used);
  }
  const get = async (path) => (await ask(path)).json();
  const inPlainWords = (error) => {
    if (error instanceof Refused) return error.status === 401 ? wrongToken() : error.message;
    return error.name === 'TimeoutError' ? `${me || 'The node'} did not answer in time.` : `${me || 'The node'} does not answer: ${error.message}`;
  };

  // Reads server-sent events until the stream ends. `last.id` is the id of the last event received, if any.
  async function listen(path, last, each, signal) {
    const used = token;
    const more = { Accept: 'text/event-stream', ...(last.id ? { 'Last-Event-ID': last.id } : {}) };
    const answer = await check(await fetch(path, { cache: 'no-store', headers: bearer(used, more), signal }), used);
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

  // The paths that this node's version of Baton offers.
  let paths = null;
  const can = (what) => Boolean(paths?.[`/v1/elections/{election}/${what}`]);

  // ------------------------------------------------------------------ words

  const length = (seconds) => {
    if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
    if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
    if (seconds < 120) return `${Math.round(seconds)} s`;
    if (seconds < 7200) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
    if (seconds < 172800) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
    return `${Math.floor(seconds / 86400)} days`;
  };
  const whole = (seconds) => (seconds < 120 ? `${Math.floor(seconds)} s` : length(seconds));
  const ago = (ms) => {
    const seconds = Math.max(0, ms / 1000);
    if (seconds < 2) return 'now';
    if (seconds < 120) return `${Math.floor(seconds)} s ago`;
    if (seconds < 7200) return `${Math.floor(seconds / 60)} min ago`;
    if (seconds < 172800) return `${Math.floor(seconds / 3600)} h ago`;
    return `${Math.floor(seconds / 86400)} days ago`;
  };
  const bytes = (number) => {
    const units = ['B', 'KiB', 'MiB', 'GiB'];
    let unit = 0;
    while (number >= 1024 && unit < 3) { number /= 1024; unit += 1; }
    return `${number < 10 && unit ? number.toFixed(1) : Math.round(number)} ${units[unit]}`;
  };
  const two = (number) => String(number).padStart(2, '0');
  const dayOf = (at) => `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const timeOf = (at) => `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  const zone = (at = new Date()) => {
    const minutes = -at.getTimezoneOffset();
    return `UTC${minutes < 0 ? '-' : '+'}${two(Math.floor(Math.abs(minutes) / 60))}:${two(Math.abs(minutes) % 60)}`;
  };
  // A time as 2026-11-28 07:12:09, in this browser's time zone.
  const when = (text) => {
    const at = new Date(text);
    return Number.isNaN(at.getTime()) ? String(text).slice(0, 30) : `${dayOf(at)} ${timeOf(at)}`;
  };
  const exact = (text) => {
    const at = new Date(text);
    return Number.isNaN(at.getTime()) ? '' : `local time (${zone(at)}); ${at.toISOString()}`;
  };
  const hex = (digest) => String(digest).replace('sha256:', '').slice(0, 12);
  const short = (digest) => (digest ? hex(digest) : '–');
  const firstLine = (text) => String(text ?? '').split('\n')[0].trim();

  // A color for each node, chosen by the node's name. If another node already has that color, the node gets the next
  // free one.
  const hues = new Map();
  function hue(name) {
    if (!hues.has(name)) {
      let sum = 0;
      for (const c of name) sum = (sum * 31 + c.codePointAt(0)) >>> 0;
      const taken = new Set(hues.values());
      let color = sum % 8;
      for (let tries = 0; tries < 8 && taken.has(color); tries += 1) color = (color + 1) % 8;
      hues.set(name, color);
    }
    return `var(--h${hues.get(name)})`;
  }

  // ------------------------------------------------------------------ elections

  const chosen = () => {
    let name = '';
    try { name = decodeURIComponent(location.hash.slice(1)); } catch { /* not a name */ }
    return elections.find((one) => one.election === name) ?? elections[0];
  };
  const path = (election, what) => `v1/elections/${encodeURIComponent(election)}/${what}`;
  const of = (election) => nodes.filter((one) => one.election === election);
  const leaderOf = (one) => (one.leads ? me : one.leader);
  const page = (node) => {
    const text = node?.admin ?? '';
    return /^https?:\/\//.test(text) ? `${text.replace(/\/+$/, '')}/` : '';
  };
  const isSilent = (node) => !(Date.now() - Date.parse(node.at) < SILENT);
  const why = { suspended: 'suspended', 'stepped-down': 'stepped down', transferring: 'transferring', 'cooling-off': 'cooling off', maintenance: 'maintenance of its machine' };
  const isSuspended = (one) => /^suspended/.test(one.ineligible ?? '') || of(one.election).some((node) => node.ineligible === 'suspended' && !isSilent(node));

  // The leader of each election as this page has seen it; `leader` is empty if there was none. `since` is the time of
  // the last change of leader (ms), or null if the page has not seen one.
  const seen = new Map();
  function watch(one) {
    const leader = leaderOf(one);
    const before = seen.get(one.election);
    if (before && before.leader === leader) {
      if (one.leaderless_s > before.total) { before.total = one.leaderless_s; before.grew = Date.now(); }
      return;
    }
    const now = Date.now();
    seen.set(one.election, { leader, since: before ? now : null, opened: now, total: one.leaderless_s, grew: now, isRead: Boolean(before) });
  }

  // The events that show an election's state: the last event, the last warning, and the start and end of the last
  // leadership.
  const facts = new Map();
  const LEFT = ['released', 'release_failed', 'leadership_lost', 'finished'];
  function note(event) {
    if (!event.election || event.event === 'output') return;
    const fact = facts.get(event.election) ?? {};
    facts.set(event.election, fact);
    if (fact.last && event.ts < fact.last.ts) return;
    fact.last = event;
    const follows = event.event === 'standby' && event.leader;
    if (event.event === 'elected' || follows) Object.assign(fact, { begins: event, left: null, warning: null, isFinished: false });
    if (LEFT.includes(event.event) || (event.event === 'standby' && !event.leader)) fact.left ??= event;
    if (event.event === 'finished') fact.isFinished = true;
    if (['warn', 'error', 'critical'].includes(event.level) && event.cause !== 'suspended') fact.warning = event;
  }

  // An election's current time without a leader: since when, for how long, and why, as far as this is known.
  function vacancy(one) {
    const [known, fact] = [seen.get(one.election) ?? {}, facts.get(one.election) ?? {}];
    const last = chosen() === one ? terms[0] : undefined;
    const now = Date.now();
    const begins = [last?.ended, fact.left?.ts].map((text) => Date.parse(text)).filter((at) => at <= now);
    const since = known.since ?? (begins.length ? Math.max(...begins) : null);
    const wasDone = last?.outcome === 'done' && now - known.grew > 3000;
    const isFinished = fact.isFinished || wasDone;
    // If the election had no leader when the page was opened, only the time since then may be known.
    const watched = (now - (known.opened ?? now)) / 1000;
    const length = since !== null ? ` for ${whole((now - since) / 1000)}` : isFinished || watched < 5 ? '' : ` for more than ${whole(watched)}`;
    let cause = '';
    let kind = 'vacant';
    if (isSuspended(one)) [kind, cause] = ['suspended', /^suspended/.test(one.ineligible ?? '') ? one.ineligible : 'suspended'];
    else if (isFinished) [kind, cause] = ['finished', 'finished: the coordinator is done'];
    else {
      const present = of(one.election).filter((node) => !isSilent(node));
      const event = fact.warning ?? fact.last;
      if (one.ineligible) cause = one.ineligible;
      if (present.length && present.every((node) => node.ineligible)) cause = `no node is eligible: ${present.map((node) => `${node.node} (${why[node.ineligible] ?? node.ineligible})`).join(', ')}`;
      else if (!cause && !one.module) cause = 'this node has no module to run';
      if (!cause && event) cause = `last event: ${event.event}${event.text ? `: ${firstLine(event.text)}` : ''}`;
      if (!cause && last && isBad(last)) cause = `term ${last.term} on ${last.node} failed`;
    }
    return { kind, cause, length, since };
  }

  // ------------------------------------------------------------------ showing

  // Makes the children of a DOM node match a list. Children that stay keep the focus.
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

  function bar(node, left, full) {
    const part = Math.max(0, Math.min(1, full > 0 ? left / full : 0));
    node.style.setProperty('--part', part.toFixed(4));
    node.classList.toggle('low', part < 0.5);
    node.classList.toggle('least', part < 0.25);
  }

  // The deadline is 0.8 lease durations after a renewal was sent.
  const leadable = (one) => 0.8 * one.lease_s;
  const left = (one) => Math.max(0, one.remaining_s - (performance.now() - answeredAt) / 1000);

  function showCards() {
    const current = chosen()?.election;
    keep($('elections'), elections, (one) => one.election, (one) => {
      const card = make('a', { class: 'card', href: `#${encodeURIComponent(one.election)}` }, make('b'), make('span', { class: 'state' }), make('span', { class: 'cause' }), make('div', { class: 'bar', 'aria-hidden': 'true' }, make('i')));
      card.firstChild.textContent = one.election;
      return card;
    }, (card, one) => {
      const leader = leaderOf(one);
      const [, state, cause, meter] = card.children;
      const none = leader ? null : vacancy(one);
      say(state, leader ? `${leader}${one.leads ? ', this node' : ''} · term ${one.term}` : `no leader${none.length}`);
      say(cause, none?.cause ?? '');
      set(cause, 'title', none?.cause ?? '');
      show(cause, Boolean(none?.cause));
      set(card, 'data-leader', has(leader, none));
      set(card, 'data-cause', none?.kind ?? '');
      set(card, 'aria-current', one.election === current);
      show(meter, one.leads);
    });
  }

  // The state that determines an election's color. A finished election needs no leader.
  const has = (leader, none) => (leader ? 'yes' : none.kind === 'finished' ? 'finished' : 'no');

  // The time at which the leader began to lead: from the history if possible, otherwise from the events, otherwise from
  // what this page has seen.
  function leadsSince(one, leader) {
    const [current] = terms;
    if (current?.node === leader && !current.ended && current.term >= one.term) {
      let at = 0;
      // A leader may begin several terms under the same lease.
      while (terms[at + 1]?.node === leader && terms[at + 1].incarnation === current.incarnation && !terms[at].leaderless_s) at += 1;
      return { at: terms[at].began, isBound: at + 1 === terms.length && at + 1 >= TERMS };
    }
    const { begins } = facts.get(one.election) ?? {};
    if (begins && begins.term === one.term && (begins.leader ?? begins.node) === leader) return { at: begins.ts, isBound: begins.event === 'standby' };
    const known = seen.get(one.election);
    return known?.since ? { at: new Date(known.since).toISOString(), isBound: false } : null;
  }

  function lastFailure() {
    const at = terms.findIndex((row) => row.ended);
    if (at < 0 || !isBad(terms[at])) return '';
    const row = terms[at];
    let count = 1;
    while (terms[at + count] && isBad(terms[at + count])) count += 1;
    const reason = firstLine(row.reason) || (row.closed_by ? `${row.closed_by} took over` : '') || (token ? 'no reason given' : 'the reason needs the token');
    const outcome = row.outcome && row.outcome !== 'failed' ? `failed (${row.outcome})` : 'failed';
    return `term ${row.term} on ${row.node} ${outcome}: ${reason} · ${ago(Date.now() - Date.parse(row.ended))}${count > 1 ? ` · ${count === terms.length ? 'at least ' : ''}${count} failures in a row` : ''}`;
  }

  function showHero(one) {
    const leader = leaderOf(one);
    const suspended = isSuspended(one);
    say($('detail-name'), one.election);
    say($('detail-leader'), leader ?? 'No leader');
    const none = leader ? null : vacancy(one);
    set(document.querySelector('.hero'), 'data-leader', has(leader, none));
    const since = leader ? leadsSince(one, leader) : null;
    if (leader) {
      say($('detail-since'), since ? `leads since ${since.isBound ? 'before ' : ''}${when(since.at)} (${whole(Math.max(0, (Date.now() - Date.parse(since.at)) / 1000))})` : 'leads');
      set($('detail-since'), 'title', since ? exact(since.at) : '');
    } else {
      say($('detail-since'), `no leader${none.length}${none.cause ? `: ${none.cause}` : ''}`);
      set($('detail-since'), 'title', none.since === null ? '' : `since ${when(none.since)}, local time (${zone()})`);
    }
    const runs = [];
    if (one.next_run) runs.push(`${Date.parse(one.next_run) > Date.now() ? 'next run' : 'run due'}: ${when(one.next_run)}`);
    if (one.next_run || one.last_completed_run) runs.push(one.last_completed_run ? `last completed run: ${when(one.last_completed_run)}` : 'no run completed yet');
    say($('detail-schedule'), runs.join(' · '));
    set($('detail-schedule'), 'title', one.next_run ? exact(one.next_run) : '');
    show($('detail-schedule'), runs.length > 0);
    const failure = lastFailure();
    say($('detail-failure'), failure);
    show($('detail-failure'), Boolean(failure));
    const notes = [`term ${one.term}`];
    if (one.leads) notes.push(one.serves ? 'the instance runs on this node' : 'no instance runs');
    if (one.module) notes.push(`module ${short(one.module)}`);
    if (one.ineligible && (leader || !none.cause.includes(one.ineligible))) notes.push(one.ineligible);
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
        $('elsewhere').replaceChildren('The deadline, the usage and the coordinator’s log are on the page of ');
        $('elsewhere').append(href ? make('a', { href, rel: 'noreferrer' }, leader) : `${leader}, which announces no address (--admin-advertise)`, '.');
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
      const silent = isSilent(node);
      const isFull = node.at_leadership_limit && node.node !== leader;
      const role = node.node === leader ? 'leader' : silent ? 'silent' : node.ineligible ? (why[node.ineligible] ?? node.ineligible) : isFull ? 'at its leadership limit' : 'standby';
      const [name, labels] = row.children[0].children;
      say(labels, Object.entries(node.labels ?? {}).map(([label, value]) => `${label}=${value}`).join(' '));
      say(name, node.node + (node.node === me ? ' (this node)' : '') + (node.duplicate ? ' – two hosts use this id' : ''));
      const pill = row.children[1].firstChild;
      say(pill, role);
      pill.className = `role${role === 'leader' ? ' leader-role' : silent ? ' silent' : node.ineligible || isFull ? ' out' : ''}`;
      say(row.children[2], String(node.priority ?? '–'));
      say(row.children[3], node.version || '–');
      say(row.children[4].firstChild, short(node.runs ?? node.holds?.[0]));
      set(row.children[4], 'title', node.runs ?? node.holds?.[0] ?? '');
      say(row.children[5], Number.isNaN(age) ? '–' : ago(age));
      set(row.children[5], 'title', Number.isNaN(age) ? '' : `${when(node.at)}, ${exact(node.at)}`);
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
    say($('usage-sub'), `process ${process.pid ?? '–'}, ${bytes(process.memory ?? 0)}, ${length((process.cpu_ms ?? 0) / 1000)} of CPU time`);
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

  // ------------------------------------------------------------------ the last terms

  const isRunning = (row) => {
    const one = chosen();
    return !row.ended && row === terms[0] && Boolean(one) && leaderOf(one) === row.node;
  };
  // The end of a term, in ms. If no end was reported, the term lasted until the next term, or until the time without a
  // leader before the next term.
  function endOf(row) {
    if (row.ended) return Date.parse(row.ended);
    const next = terms[terms.indexOf(row) - 1];
    if (next) return Date.parse(next.began) - (next.leaderless_s ?? 0) * 1000;
    const one = chosen();
    return (one && !isRunning(row) && vacancy(one).since) || Date.now();
  }
  const led = (row) => Math.max(0, (endOf(row) - Date.parse(row.began)) / 1000) || 0;
  const end = (row) => {
    if (isRunning(row)) return 'running';
    if (!row.ended) return 'end not reported yet';
    const what = [row.outcome, row.reason].filter(Boolean).join(': ');
    return `${what || 'ended'}${row.closed_by ? `, reported by ${row.closed_by}` : ''}`;
  };
  const isBad = (row) => Boolean(row.ended) && (Boolean(row.closed_by) || ['failed', 'fatal', 'unable', 'killed'].includes(row.outcome));
  const inWords = (row) => [
    `Term ${row.term} on ${row.node}`,
    row.leaderless_s ? `no leader for ${length(row.leaderless_s)} before` : '',
    row.due ? `due ${when(row.due)}` : '',
    `began ${when(row.began)}`,
    `${isRunning(row) ? 'has led' : 'led'} for ${length(led(row))}`,
    end(row),
  ].filter(Boolean).join(' · ');

  // Number of terms to show if no time span is chosen.
  const SHOWN = 12;
  // Minimum widths, in pixels, of a term and of a time without a leader. Both must be visible, and a term can be
  // clicked.
  const LEAST = { term: 12, gap: 5 };
  const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 1209600, 2592000, 7776000, 31536000].map((step) => step * 1000);

  // The parts of the timeline, oldest first, and the start and end of the time that it shows.
  function timeline() {
    const [now, one, chosenSpan] = [Date.now(), chosen(), $('span').value];
    const parts = [];
    for (const row of [...terms].reverse()) {
      const from = Date.parse(row.began);
      if (Number.isNaN(from)) continue;
      if (row.leaderless_s) parts.push({ row, kind: 'gap', from: from - row.leaderless_s * 1000, to: from, seconds: row.leaderless_s });
      parts.push({ row, kind: 'term', from, to: Math.max(from, endOf(row) || from) });
    }
    const last = parts.at(-1);
    const none = one && !leaderOf(one) && last && !isRunning(last.row) ? vacancy(one) : null;
    if (none && none.kind !== 'finished' && last.to < now) parts.push({ row: last.row, kind: 'gap', isOpen: true, from: last.to, to: now, seconds: (now - last.to) / 1000 });
    const first = chosenSpan === 'all' ? parts[0] : parts.find((part) => terms.indexOf(part.row) < SHOWN);
    const stop = Math.max(now, ...parts.map((part) => part.to));
    const start = Math.min(Number(chosenSpan) ? stop - Number(chosenSpan) * 1000 : first?.from ?? stop, stop - 10e3);
    return { parts: parts.filter((part) => part.to >= start && part.from <= stop), start, stop };
  }

  // Places the parts on a linear scale. Widens parts that would be too narrow, and moves the parts after them.
  function place(parts, start, stop, room) {
    const least = parts.reduce((sum, part) => sum + LEAST[part.kind], 0);
    // Use more than the minimum width, so that lengths can be compared. If the parts do not fit, the timeline scrolls.
    const width = Math.max(room, 1.6 * least);
    const x = (at) => ((Math.max(at, start) - start) / (stop - start)) * width;
    let edge = 0;
    for (const part of parts) {
      part.x = Math.max(x(part.from), edge);
      edge = Math.max(x(part.to), part.x + LEAST[part.kind]);
      part.end = edge;
    }
    edge = width;
    for (const part of [...parts].reverse()) {
      part.end = Math.min(part.end, edge);
      part.x = Math.min(part.x, part.end - LEAST[part.kind]);
      edge = part.x;
    }
    return { width, x };
  }

  function showAxis(start, stop, width, x) {
    const most = Math.max(2, Math.floor(width / 100));
    const step = STEPS.find((one) => (stop - start) / one <= most) ?? STEPS.at(-1);
    const offset = -new Date(stop).getTimezoneOffset() * 60e3;
    const ticks = [];
    let day = '';
    for (let at = Math.ceil((start + offset) / step) * step - offset; x(at) < width - 40; at += step) {
      const date = new Date(at);
      const isLabeled = x(at) < width - 110;
      const time = step >= DAY ? '' : timeOf(date).slice(0, step % 60e3 ? 8 : 5);
      const isNewDay = isLabeled && dayOf(date) !== day;
      if (isLabeled) day = dayOf(date);
      ticks.push({ at, text: isLabeled ? time || dayOf(date) : '', day: isLabeled && time && isNewDay ? dayOf(date) : '' });
    }
    keep($('axis'), [...ticks, { at: stop, text: 'now', day: '', isEnd: true }], (tick) => (tick.isEnd ? 'now' : `${tick.at}`), (tick) => make('li', tick.isEnd ? { class: 'end' } : {}, make('span'), make('span')), (item, tick) => {
      item.style.setProperty('left', tick.isEnd ? '100%' : `${x(tick.at).toFixed(1)}px`);
      say(item.children[0], tick.text);
      say(item.children[1], tick.day);
    });
  }

  let drawn = '';
  function showTerms() {
    show($('history-panel'), terms.length > 0);
    if (!terms.length) return;
    for (const name of [...new Set(terms.map((row) => row.node))].sort()) hue(name);
    const { parts, start, stop } = timeline();
    const { width, x } = place(parts, start, stop, Math.max(200, $('chart').clientWidth));
    say($('history-sub'), `local time (${zone()})`);
    $('chart').firstElementChild.style.setProperty('width', `${width.toFixed(0)}px`);
    keep($('timeline'), parts, (part) => (part.isOpen ? 'open' : `${part.kind} ${part.row.term} ${part.row.incarnation}`), (part) => {
      if (part.kind === 'gap') return make('li', { class: 'gap' });
      const { row } = part;
      const button = make('button', { type: 'button', 'aria-pressed': 'false' });
      const choose = () => { if (term !== row.term) { term = row.term; showTerms(); } };
      button.addEventListener('click', choose);
      button.addEventListener('focus', choose);
      button.addEventListener('pointerenter', choose);
      return make('li', {}, button);
    }, (item, part) => {
      const wide = part.end - part.x;
      item.style.setProperty('left', `${part.x.toFixed(1)}px`);
      item.style.setProperty('width', `${Math.max(2, wide - 2).toFixed(1)}px`);
      if (part.kind === 'gap') { set(item, 'title', `no leader for ${length(part.seconds)}`); return; }
      const button = item.firstChild;
      button.style.setProperty('--hue', hue(part.row.node));
      set(button, 'data-end', isRunning(part.row) ? 'open' : !part.row.ended ? 'unknown' : isBad(part.row) ? 'bad' : 'good');
      set(button, 'aria-label', inWords(part.row));
      set(button, 'aria-pressed', part.row.term === term);
      const number = String(part.row.term);
      say(button, wide > 90 ? `${number} ${part.row.node}` : wide > 10 * number.length + 18 ? number : '');
    });
    showAxis(start, stop, width, x);
    const shown = [...new Set(parts.map((part) => part.row.node))].sort();
    const listed = shown.length > 8 ? [...shown.slice(0, 8), `and ${shown.length - 8} more`] : shown;
    keep($('legend-nodes'), listed, (name) => name, (name) => make('li', { title: name }, make('i', { 'aria-hidden': 'true' }), make('span', {}, name)), (item, name) => {
      item.firstChild.style.setProperty('--hue', shown.includes(name) ? hue(name) : 'transparent');
    });
    // The newest term is at the right.
    const now = `${chosen()?.election} ${$('span').value}`;
    if (drawn !== now) { drawn = now; $('chart').scrollLeft = $('chart').scrollWidth; }
    const row = terms.find((one) => one.term === term) ?? terms[0];
    say($('term-text'), inWords(row));
    say($('terms-summary'), terms.length === 1 ? '1 term as a table' : `${terms.length} terms as a table`);
    keep($('terms'), terms, (one) => `${one.term} ${one.incarnation}`, () => {
      const made = make('tr');
      for (let cell = 0; cell < 6; cell += 1) made.append(make('td', cell === 2 || cell === 3 || cell === 4 ? { class: 'num' } : {}));
      return made;
    }, (made, one) => {
      const texts = [String(one.term), one.node, when(one.began), length(led(one)), one.leaderless_s ? length(one.leaderless_s) : '–', end(one)];
      texts.forEach((text, cell) => say(made.children[cell], text));
      set(made.children[2], 'title', exact(one.began));
      set(made.children[5], 'title', one.ended ? `${when(one.ended)}, ${exact(one.ended)}` : '');
    });
  }

  // ------------------------------------------------------------------ lines

  // Lines that wait to be appended to their list. They are appended together, because each change of a list costs a
  // layout. Otherwise, a coordinator that prints a lot would leave the browser no time for anything else.
  const pending = new Map();
  function line(list, level, ts, tag, parts) {
    const lines = pending.get(list) ?? [];
    if (!lines.length) { pending.set(list, lines); setTimeout(() => append(list), 250); }
    const text = make('span', { class: 'text' }, ...parts);
    const at = make('time', ts ? { datetime: ts, title: exact(ts) } : {}, ts ? when(ts) : '');
    lines.push(make('li', { 'data-level': level }, at, make('span', { class: 'tag' }, tag), text));
    if (lines.length > LINES) lines.shift();
  }
  function append(list) {
    const lines = pending.get(list) ?? [];
    pending.delete(list);
    const isAtEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
    list.append(...lines);
    while (list.children.length > LINES) list.firstChild.remove();
    if (isAtEnd) list.scrollTop = list.scrollHeight;
  }
  function empty(list) {
    pending.delete(list);
    list.replaceChildren();
  }

  function showLive() {
    const age = performance.now() - (answeredAt || tried);
    const state = hasRefused ? 'stale' : !answeredAt ? (trouble ? 'stale' : 'wait') : age < 5000 ? 'live' : 'stale';
    set($('live'), 'data-state', state);
    say($('live-text'), hasRefused ? 'no access' : state === 'live' ? 'live' : state === 'wait' ? 'connecting' : answeredAt ? 'stale' : 'no answer');
    document.body.classList.toggle('stale', state === 'stale' && answeredAt > 0);
    const text = hasRefused ? trouble : state === 'stale' ? `${me || 'The node'} has not answered${answeredAt ? ` for ${length(age / 1000)}: this page is out of date` : ''}. Retrying.` : '';
    const all = [tokenTrouble, text].filter(Boolean).join(' ');
    show($('banner'), Boolean(all));
    if (all) say($('banner'), all);
    say($('unlock'), token ? 'Forget the token' : 'Token…');
  }

  function showDeadline() {
    const one = chosen();
    if (one?.leads) {
      const seconds = left(one);
      bar($('deadline-bar'), seconds, leadable(one));
      set($('deadline-bar'), 'aria-valuemax', leadable(one).toFixed(1));
      set($('deadline-bar'), 'aria-valuenow', seconds.toFixed(1));
      set($('deadline-bar'), 'aria-valuetext', `${seconds.toFixed(1)} s`);
      say($('deadline-text'), performance.now() - answeredAt < 5000 ? `${seconds.toFixed(1)} s` : '–');
    }
    elections.forEach((each, at) => {
      const card = $('elections').children[at];
      if (card && each.leads) bar(card.lastElementChild, left(each), leadable(each));
    });
  }

  function showAll() {
    const one = chosen();
    say($('node'), me || '…');
    document.title = one ? `${leaderOf(one) ?? 'no leader'} · ${one.election} · Baton` : 'Baton';
    show($('detail'), Boolean(one));
    show($('none'), answeredAt > 0 && !one && !hasRefused);
    if (answeredAt > 0 && !one) say($('none'), 'This node is in no election.');
    showCards();
    if (one) { showHero(one); showNodes(one); showUsage(one); say($('events-node'), me); }
    showLive();
    showDeadline();
  }

  // ------------------------------------------------------------------ reading

  let nudge = () => {};
  async function watchElections() {
    for (;;) {
      tried ||= performance.now();
      const used = token;
      try {
        const now = await get('v1/elections');
        elections = now;
        me = now[0]?.node ?? me;
        answeredAt = performance.now();
        trouble = '';
        hasRefused = false;
        elections.forEach(watch);
      } catch (error) {
        hasRefused = error instanceof Refused;
        trouble = error.message;
        if (hasRefused && error.status === 401) {
          elections = [];
          trouble = used ? '' : 'This node shows its status to other machines only with its token. Enter the token with the button “Token…”.';
        }
      }
      showAll();
      const pause = document.hidden ? 5000 : trouble ? 2000 : 1000;
      await Promise.race([wait(pause), new Promise((done) => { nudge = done; })]);
    }
  }

  // Reads the past events of elections that had no leader when the page was opened, because these events show why.
  // Reads a few elections at a time.
  async function readCauses() {
    const open = elections.filter((one) => !leaderOf(one) && seen.get(one.election)?.isRead === false);
    for (const one of open.slice(0, 5)) {
      seen.get(one.election).isRead = true;
      const past = await get(`v1/events?election=${encodeURIComponent(one.election)}&tail=100`);
      past.forEach(note);
    }
  }

  let nudgeNodes = () => {};
  async function watchStore() {
    for (;;) {
      let pause = 5000;
      if (answeredAt && !trouble) {
        try {
          paths ??= (await get('v1/openapi.json')).paths;
          nodes = await get('v1/nodes');
          const one = chosen();
          if (one && can('history')) {
            const read = await get(`${path(one.election, 'history')}?limit=${TERMS}`);
            if (chosen()?.election === one.election) { terms = read; showTerms(); }
          }
          await readCauses();
          showAll();
        } catch { /* The page shows that the data is old, and reads again. */ }
      } else pause = 500;
      await Promise.race([wait(pause), new Promise((done) => { nudgeNodes = done; })]);
    }
  }

  // After an event, reads everything at once, and the store's objects again later, when they are up to date.
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
      if (answeredAt && !trouble) {
        try {
          events = new AbortController();
          await listen('v1/events?tail=60', last, (kind, event) => {
            if (kind === 'missed') { line($('events'), 'missed', '', '', [`${event.missed} events missed`]); return; }
            note(event);
            const which = [event.election, event.term ? `term ${event.term}` : ''].filter(Boolean).join(' ');
            line($('events'), event.level, event.ts, event.level, [make('b', {}, event.event), ` ${which ? `(${which}) ` : ''}${event.text ?? ''}`]);
            changed();
          }, events.signal);
        } catch { /* The stream is opened again. The banner shows that the node does not answer. */ }
      }
      await wait(1000);
    }
  }

  let logs = null; // The stream that is being read. `of` holds its election, lowest level and token.
  async function watchLogs() {
    const last = {};
    let of = '';
    for (;;) {
      const one = chosen();
      const level = $('level').value;
      const wanted = one ? `${one.election} ${level} ${token}` : '';
      if (of !== wanted) { of = wanted; last.id = ''; empty($('logs')); }
      say($('logs-sub'), `on ${me}`);
      let note = '';
      if (!one || trouble) note = '';
      else if (!token) note = 'The coordinator’s output needs the token, which is in the file of --admin-token-file. Enter it with the button “Token…”.';
      else {
        logs = new AbortController();
        try {
          say($('logs-note'), one.leads ? '' : 'This node does not lead: this is the output of its own past instances.');
          await listen(`${path(one.election, 'logs')}?tail=200&level=${level}`, last, (kind, entry) => {
            if (kind === 'missed') { line($('logs'), 'missed', '', '', [`${entry.missed} lines missed`]); return; }
            const tag = { stdout: 'out', stderr: 'err' }[entry.stream] ?? entry.level;
            const parts = entry.line === undefined ? [make('b', {}, entry.event), ` ${entry.text ?? ''}`] : entry.context ? [make('b', {}, entry.context), ` ${entry.line}`] : [entry.line];
            line($('logs'), entry.level, entry.ts, tag, parts);
          }, logs.signal);
        } catch (error) {
          if (error instanceof Refused) note = inPlainWords(error);
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
    'step-down': { title: 'Step down', text: (one) => `The leader of ${one.election} stops its instance and releases the lease. Another node takes over.`, fields: ['for', 'why'] },
    transfer: { title: 'Transfer', text: (one) => `The leader of ${one.election} steps down, and the node that you choose takes over. If it does not take the lease soon, the previous leader may continue.`, fields: ['to', 'why'] },
    suspend: { title: 'Suspend', text: (one) => `No node leads ${one.election} until you resume it.`, fields: ['why'] },
    resume: { title: 'Resume', text: (one) => `Nodes contend for ${one.election} again.`, fields: [] },
    rollback: { title: 'Roll back', text: (one) => `The version that you choose becomes the current one of ${one.election}, and every node changes to it.`, fields: ['which', 'why'] },
    token: { title: 'Token', text: () => 'The coordinator’s output and all changes need the token. The page checks it now, and forgets it when you close the page.', fields: [] },
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
    say($('ask-go'), name === 'token' ? 'Check and use it' : action.title);
    $('ask-go').disabled = false;
    fail('');
    if (name === 'rollback') listVersions(asking);
    $('ask').showModal();
  }
  function fail(text) {
    say($('ask-error'), text);
    show($('ask-error'), Boolean(text));
  }

  // Lists the versions to choose from. If the user chooses none, the node rolls back to the newest other version that
  // was not rejected.
  async function listVersions(asked) {
    const newest = (which) => make('option', { value: '' }, `newest other that was not rejected${which}`);
    const list = $('ask-digest');
    list.replaceChildren(newest(''));
    if (!can('modules')) return;
    list.append(make('option', { disabled: '' }, 'reading the versions…'));
    try {
      const rows = await get(path(asked.election, 'modules'));
      if (asking !== asked) return;
      // Nodes may also announce modules that nobody pushed. They can be chosen only if a node has rejected them.
      const options = rows.filter((row) => row.pushed || row.verdict === 'rejected');
      const next = options.find((row) => row.pushed && !row.current && row.verdict !== 'rejected');
      const choice = list.value;
      list.replaceChildren(newest(next ? `: ${hex(next.digest)}` : ' (there is none)'));
      for (const row of options) {
        const verdict = row.verdict === 'rejected' ? `rejected${row.reason ? `: ${firstLine(row.reason).slice(0, 60)}` : ''}` : (row.verdict ?? 'no verdict').replace('-', ' ');
        const facts = [hex(row.digest), row.at ? when(row.at) : '', row.by || (row.pushed ? '' : 'not pushed'), verdict, row.current ? 'current' : ''];
        list.append(make('option', { value: row.digest, disabled: row.current ? '' : false, title: row.digest }, facts.filter(Boolean).join(' · ')));
      }
      list.value = choice;
    } catch (error) {
      if (asking !== asked) return;
      list.replaceChildren(newest(''));
      fail(`The versions could not be read: ${inPlainWords(error)}`);
    }
  }

  let fading = 0;
  function toast(text, failed) {
    say($('toast'), text);
    $('toast').classList.toggle('failed', failed);
    show($('toast'), true);
    clearTimeout(fading);
    fading = setTimeout(() => show($('toast'), false), 12e3);
  }
  const send = (path, given, more = {}) => fetch(path, { cache: 'no-store', signal: AbortSignal.timeout(10e3), ...more, headers: bearer(given, more.headers) });

  // Checks that the node accepts the token. Also reads a coordinator's output, which always requires the token.
  async function verify(given) {
    let answer = await send('v1/elections', given);
    if (answer.ok) {
      const [first] = await answer.json();
      if (first) answer = await send(`${path(first.election, 'logs')}?tail=1`, given);
    }
    const text = answer.bodyUsed ? '' : await answer.text();
    if (!answer.ok) throw new Refused(answer.status, text);
  }
  function accept(given) {
    tokenTrouble = '';
    if (token === given) return;
    token = given;
    reconnect();
    nudge();
    nudgeNodes();
  }
  async function go() {
    const { name, election } = asking;
    const given = $('ask-token').value.trim();
    const reason = $('ask-reason').value.trim();
    // Over plain HTTP, others could read the token on its way.
    if (!isSecureContext) { fail('The token is not sent over plain HTTP: open this page with https.'); return; }
    // A request header cannot carry other characters.
    if (!/^[\x21-\x7e]+$/.test(given)) { fail('This token is wrong: a token has only printable ASCII characters, without spaces.'); return; }
    const body = {};
    if (reason && ACTIONS[name].fields.includes('why')) body.reason = reason;
    if (name === 'step-down') body.for_s = Number($('ask-seconds').value);
    if (name === 'transfer') body.to = $('ask-node').value;
    if (name === 'rollback' && $('ask-digest').value) body.digest = $('ask-digest').value;
    $('ask-go').disabled = true;
    fail('');
    try {
      if (name === 'token') {
        await verify(given);
        accept(given);
        $('ask').close();
        showLive();
        return;
      }
      // These commands apply to all shards of a group.
      const isOfGroup = ['suspend', 'resume', 'rollback'].includes(name);
      const answer = await send(path(isOfGroup ? election.split('/')[0] : election, name), given, {
        method: 'POST', signal: AbortSignal.timeout(58e3), body: JSON.stringify(body), headers: { 'Content-Type': 'application/json' },
      });
      const text = await answer.text();
      let result = text.trim();
      try { result = JSON.parse(text).result ?? result; } catch { /* plain text */ }
      if (!answer.ok) throw new Refused(answer.status, result);
      accept(given);
      $('ask').close();
      toast(result || 'done', false);
      changed();
    } catch (error) {
      fail(inPlainWords(error));
      if (error.status === 401) $('ask-token').select();
    } finally {
      $('ask-go').disabled = false;
    }
  }
  for (const button of document.querySelectorAll('[data-action]')) button.addEventListener('click', () => open(button.dataset.action));
  $('unlock').addEventListener('click', () => { if (token) { token = ''; reconnect(); nudgeNodes(); showLive(); } else open('token'); });
  $('ask-cancel').addEventListener('click', () => $('ask').close());
  $('ask-form').addEventListener('submit', (event) => { event.preventDefault(); go(); });
  $('level').addEventListener('change', reread);
  $('span').addEventListener('change', showTerms);
  addEventListener('hashchange', () => { terms = []; term = null; for (const id of ['timeline', 'terms', 'axis', 'legend-nodes']) $(id).replaceChildren(); showTerms(); reread(); showAll(); nudgeNodes(); });
  document.addEventListener('visibilitychange', () => { if (!document.hidden) nudge(); });
  new ResizeObserver(() => { if (terms.length) showTerms(); }).observe($('chart'));

  // ------------------------------------------------------------------ colors

  const themes = ['auto', 'light', 'dark'];
  const marks = { auto: ['◐', 'as in the system'], light: ['☀', 'light'], dark: ['☾', 'dark'] };
  const remembered = () => { try { return localStorage.getItem('baton-theme') ?? 'auto'; } catch { return 'auto'; } };
  function paint(theme) {
    document.documentElement.dataset.theme = theme;
    say($('theme'), marks[theme][0]);
    for (const name of ['aria-label', 'title']) set($('theme'), name, `Colors: ${marks[theme][1]}`);
  }
  paint(themes.includes(remembered()) ? remembered() : 'auto');
  $('theme').addEventListener('click', () => {
    const next = themes[(themes.indexOf(document.documentElement.dataset.theme) + 1) % themes.length];
    try { localStorage.setItem('baton-theme', next); } catch { /* The browser keeps nothing. */ }
    paint(next);
  });

  setInterval(() => { showLive(); showDeadline(); }, 250);
  watchElections();
  watchStore();
  watchEvents();
  watchLogs();
})();
