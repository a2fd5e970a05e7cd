// Makes a component of Go's core module: node component.mjs CORE WIT COMPONENT, with jco in NODE_PATH.

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

/** A folder of WIT, its deps as nested packages: jco cannot embed a folder. */
function inOneText(folder) {
  const read = (...path) => readFileSync(join(folder, ...path), 'utf8');
  const nested = (text) => `${text.replace(/^package (.*);$/m, 'package $1 {')}}\n`;
  return [read('scheduler.wit'), ...readdirSync(join(folder, 'deps')).map((file) => nested(read('deps', file)))].join('\n');
}
