// Turns Go's core module into a component: node component.mjs CORE WIT COMPONENT, in a folder where jco is installed.

import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const jco = createRequire(process.cwd() + '/').resolve('@bytecodealliance/jco');
const { componentEmbed, componentNew, preview1AdapterReactorPath } = await import(pathToFileURL(jco));

const [core, wit, component] = process.argv.slice(2);
const embedded = await componentEmbed({ binary: readFileSync(core), witSource: inOneText(wit), worldName: 'scheduler' });
const adapter = readFileSync(preview1AdapterReactorPath());
writeFileSync(component, await componentNew(embedded, [['wasi_snapshot_preview1', adapter]]));

/** Returns a folder of WIT as one text, with its deps as nested packages, because jco cannot embed a folder. */
function inOneText(folder) {
  const read = (...path) => readFileSync(join(folder, ...path), 'utf8');
  const nested = (text) => `${text.replace(/^package (.*);$/m, 'package $1 {')}}\n`;
  return [read('scheduler.wit'), ...readdirSync(join(folder, 'deps')).map((file) => nested(read('deps', file)))].join('\n');
}
