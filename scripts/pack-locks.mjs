// Packs only the locks as `doorbuster-locks`: all files that dist/locks/index.js imports, with ioredis as the only dependency.
//   npm run pack:locks [-- <folder for the tarball>]
// Prints the tarball's name, like npm pack.
import { execFileSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, posix, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const NAME = 'doorbuster-locks';
const ENTRY = 'dist/locks/index.js';
/** Needed by `schedule`, by `observeLocks`, and for the types of `fastifyIdempotency`. */
const OPTIONAL = ['croner', 'fastify', 'prom-client'];
const PAGES = {
  'README.md': 'docs/guides/locks.md',
  'docs/internals/locks.md': 'docs/internals/locks.md',
  'docs/concepts/lock-steps.md': 'docs/concepts/lock-steps.md',
};
const EXAMPLES = ['examples/locks.ts', 'examples/locks-idempotency.ts'];
const LEAD = `# doorbuster-locks

Locks for Node on Redis, or inside one process: mutex, fair, read-write, semaphore, latch, multi, quorum (Redlock), once, leader,
schedule, with fencing tokens; and a middleware against double submission for Express and Fastify. This is \`doorbuster/locks\`
as a package of its own, built from the same source. It needs Node 24 or newer and depends on ioredis alone.

\`schedule\` also needs the package croner, and \`observeLocks\` (metrics) needs prom-client: install them beside it if you call
those.

`;

const read = (file) => readFileSync(join(root, file), 'utf8');

/** The packages and the files of ours that some code imports. */
function importsOf(code) {
  const all = [...code.matchAll(/(?:\bfrom|\bimport\(?)\s*['"]([^'"]+)['"]/g)].map(([, target]) => target);
  return { own: all.filter((one) => one.startsWith('.')), foreign: all.filter((one) => !one.startsWith('.')) };
}

/** dist/locks/index.js and all files that it imports, with their types. */
function reached() {
  const files = new Set();
  const queue = [ENTRY, ENTRY.replace(/\.js$/, '.d.ts')];
  for (const file of queue) {
    if (files.has(file)) continue;
    files.add(file);
    const { own, foreign } = importsOf(read(file));
    const unknown = foreign.filter((one) => !one.startsWith('node:') && one !== 'ioredis' && !OPTIONAL.includes(one));
    if (unknown.length > 0) throw new Error(`${file} imports ${unknown.join(', ')}: ${NAME} does not have it`);
    for (const target of own) {
      // Type files import `./x.ts`.
      const script = posix.join(dirname(file), target).replace(/\.ts$/, '.js');
      queue.push(file.endsWith('.d.ts') ? script.replace(/\.js$/, '.d.ts') : script);
    }
  }
  return [...files];
}

/** A page for the package: links to files that it does not contain become plain text. */
function page(from, to, packed) {
  // The original page also says how to get this package.
  const text = read(from)
    .replace(/ As a\s+small package of its own it is [^.]*\./, '')
    .replaceAll('doorbuster/locks', NAME);
  return text.replace(/\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)/g, (link, label, target, anchor = '') => {
    if (/^[a-z]+:/.test(target)) return link;
    const source = posix.join(dirname(from), target);
    const shipped = packed.get(source);
    return shipped === undefined ? label : `[${label}](${posix.relative(dirname(to), shipped)}${anchor})`;
  });
}

execFileSync(process.execPath, [join(root, 'scripts', 'prepare.mjs')], { cwd: root, stdio: ['ignore', 2, 2] });
const stage = mkdtempSync(join(tmpdir(), 'doorbuster-locks-'));
process.on('exit', () => rmSync(stage, { recursive: true, force: true }));
const put = (file, text) => {
  mkdirSync(dirname(join(stage, file)), { recursive: true });
  writeFileSync(join(stage, file), text);
};

const missing = new RegExp(`^(?=(?:import|export)\\b[^;]*['"](?:${OPTIONAL.join('|')})['"];)`, 'gm');
for (const file of reached()) {
  // Without an optional package its types must not fail the user's build.
  const text = read(file).replace('doorbuster needs Node', `${NAME} needs Node`);
  put(file, file.endsWith('.d.ts') ? text.replace(missing, '// @ts-ignore\n') : text);
  const lua = join(dirname(file), 'lua');
  if (existsSync(join(root, lua))) cpSync(join(root, lua), join(stage, lua), { recursive: true });
}
const packed = new Map([
  ...Object.entries(PAGES).map(([to, from]) => [from, to]),
  ...EXAMPLES.map((file) => [file, file]),
]);
for (const [to, from] of Object.entries(PAGES)) {
  const text = page(from, to, packed);
  put(to, to === 'README.md' ? LEAD + text.replace(/^# .*\n+/, '') : text);
}
for (const file of EXAMPLES) {
  const own = /^\/\/ In your program: .*\n(import \{[^}]*\} from )'\.\.\/src\/locks\/index\.ts'/m;
  put(file, read(file).replace(own, `$1'${NAME}'`).replaceAll('doorbuster/locks', NAME));
}
put('LICENSE', read('LICENSE'));

const whole = JSON.parse(read('package.json'));
// A range, not our exact version: a given client must come from the same ioredis, and an application has its own Fastify.
const range = (name) => `^${whole.dependencies[name].split('.')[0]}.0.0`;
const { version, license, type, engines } = whole;
put(
  'package.json',
  `${JSON.stringify(
    {
      name: NAME,
      version,
      description:
        'Locks on Redis or inside one process: fair, read-write, semaphore, quorum, leader; with fencing tokens.',
      keywords: ['lock', 'mutex', 'semaphore', 'redlock', 'redis', 'distributed-lock', 'leader-election', 'fencing'],
      license,
      type,
      engines,
      exports: {
        '.': { types: './dist/locks/index.d.ts', default: './dist/locks/index.js' },
        './package.json': './package.json',
      },
      files: readdirSync(stage).filter((name) => name !== 'package.json'),
      dependencies: { ioredis: range('ioredis') },
      peerDependencies: Object.fromEntries(OPTIONAL.map((name) => [name, range(name)])),
      peerDependenciesMeta: Object.fromEntries(OPTIONAL.map((name) => [name, { optional: true }])),
    },
    null,
    2,
  )}\n`,
);
const to = resolve(process.env.INIT_CWD ?? process.cwd(), process.argv[2] ?? '.');
const windows = process.platform === 'win32';
const name = execFileSync('npm', ['pack', '--loglevel=error', '--no-dry-run', '--pack-destination', to], {
  cwd: stage,
  encoding: 'utf8',
  stdio: ['ignore', 'pipe', 2],
  shell: windows,
});
console.log(name.trim());
