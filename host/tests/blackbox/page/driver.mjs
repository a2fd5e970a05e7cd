// Drives a browser. Reads one command per line from standard input, and answers each command with one line.
import { createInterface } from 'node:readline';
import { createRequire } from 'node:module';

const [core, program, profile] = process.argv.slice(2);
const { chromium } = createRequire(import.meta.url)(core);
const options = {
  executablePath: program,
  headless: true,
  // There is no timeout here, because the test limits the duration of each command.
  timeout: 0,
  args: [
    '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
    '--disable-component-update', '--disable-sync',
  ],
};

// Retries, because Chromium may crash while it starts (SIGSEGV, seen once). The page does not cause these crashes.
async function launch(tries) {
  try {
    return await chromium.launchPersistentContext(profile, options);
  } catch (failure) {
    if (tries === 1) throw failure;
    console.error(`Chromium did not start: ${failure}`);
    return launch(tries - 1);
  }
}
const context = await launch(3);
context.setDefaultTimeout(0);
const pages = new Map();
const consoles = new Map();

const does = {
  async open({ page, url, width = 1440, height = 1000, scheme = 'light' }) {
    const opened = await context.newPage();
    pages.set(page, opened);
    const lines = [];
    consoles.set(page, lines);
    opened.on('console', (message) => lines.push(`${message.type()}: ${message.text()}`));
    opened.on('pageerror', (error) => lines.push(`error: ${error}`));
    opened.on('request', (request) => { if (new URL(request.url()).origin !== new URL(url).origin && !request.url().startsWith('data:')) lines.push(`asks ${request.url()}`); });
    // Disables animations, because they would take CPU time that the hosts need.
    await opened.emulateMedia({ colorScheme: scheme, reducedMotion: 'reduce' });
    await opened.setViewportSize({ width, height });
    await opened.goto(url);
  },
  text: ({ page, at }) => pages.get(page).locator(at).first().innerText(),
  texts: ({ page, at }) => pages.get(page).locator(at).allInnerTexts(),
  is_shown: ({ page, at }) => pages.get(page).locator(at).first().isVisible(),
  attribute: ({ page, at, name }) => pages.get(page).locator(at).first().getAttribute(name),
  count: ({ page, at }) => pages.get(page).locator(at).count(),
  click: ({ page, at }) => pages.get(page).locator(at).first().click(),
  fill: ({ page, at, value }) => pages.get(page).locator(at).first().fill(value),
  choose: ({ page, at, value }) => pages.get(page).locator(at).first().selectOption(value),
  press: ({ page, key }) => pages.get(page).keyboard.press(key),
  focused: ({ page }) => pages.get(page).evaluate(() => document.activeElement?.textContent ?? ''),
  evaluate: ({ page, script }) => pages.get(page).evaluate(script),
  view: async ({ page, width, height, scheme }) => {
    await pages.get(page).emulateMedia({ colorScheme: scheme, reducedMotion: 'reduce' });
    await pages.get(page).setViewportSize({ width, height });
  },
  picture: async ({ page, file, width, height }) => {
    const one = pages.get(page);
    if (width) await one.setViewportSize({ width, height });
    await one.screenshot({ path: file, fullPage: !height });
  },
  console: ({ page }) => consoles.get(page),
  close: ({ page }) => pages.get(page).close(),
};

for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  let answer;
  try {
    answer = { did: (await does[command.do](command)) ?? null };
  } catch (error) {
    answer = { failed: String(error) };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
await context.close();
