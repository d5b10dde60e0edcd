import { cpSync, mkdirSync, readdirSync, readFileSync, symlinkSync, utimesSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { ROOT, temporaryFolder } from '../server.ts';

/**
 * A folder in which the printed commands run unchanged. It looks like a clone after `npm install`, so that `npm start`,
 * `npx doorbuster`, `./node_modules/.bin/doorbuster` and `import … from 'doorbuster'` use the sources of this tree. Files that
 * they create (`./data`) stay in it.
 */
export function makeWorkshop(): string {
  const folder = temporaryFolder();
  for (const name of ['package.json', 'package-lock.json', 'bin', 'scripts', 'ops', 'examples']) {
    cpSync(join(ROOT, name), join(folder, name), { recursive: true });
  }
  symlinkSync(join(ROOT, 'src'), join(folder, 'src'));
  for (const inside of ['', '.bin']) {
    mkdirSync(join(folder, 'node_modules', inside), { recursive: true });
    for (const name of readdirSync(join(ROOT, 'node_modules', inside))) {
      if (name === '.bin' || name === 'doorbuster') continue;
      symlinkSync(join(ROOT, 'node_modules', inside, name), join(folder, 'node_modules', inside, name));
    }
  }
  symlinkSync('../../bin/doorbuster.js', join(folder, 'node_modules', '.bin', 'doorbuster'));
  // setup.mjs would install again if the lock file were newer than node_modules.
  utimesSync(join(folder, 'package-lock.json'), 0, 0);
  entryPoints(folder);
  return folder;
}

/** A package may import itself by name. Its exports lead to dist; here they lead to the sources. */
function entryPoints(folder: string): void {
  const { exports } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')) as {
    exports: Record<string, { default: string } | string>;
  };
  for (const target of Object.values(exports)) {
    if (typeof target === 'string') continue;
    const source = join(ROOT, target.default.replace('./dist/', 'src/').replace(/\.js$/, '.ts'));
    const entry = join(folder, target.default);
    mkdirSync(dirname(entry), { recursive: true });
    writeFileSync(entry, `export * from '${pathToFileURL(source)}';\n${defaultExport(source)}`);
  }
}

function defaultExport(source: string): string {
  const has = /^export default |\bas default\b/m.test(readFileSync(source, 'utf8'));
  return has ? `export { default } from '${pathToFileURL(source)}';\n` : '';
}
