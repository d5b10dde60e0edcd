// Compiles src to dist and copies what is not TypeScript (SQL, Lua, pages) beside it.
// --if-stale: only if dist is missing or older than its sources.
import { spawnSync } from 'node:child_process';
import { cpSync, existsSync, readdirSync, renameSync, rmSync, statSync } from 'node:fs';
import { dirname, extname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const dist = join(root, 'dist');

function isStale() {
  if (!existsSync(dist)) return true;
  const sources = ['src', 'package.json', 'tsconfig.json', 'tsconfig.build.json', 'scripts/build.mjs'];
  // Folders, too: theirs is the time at which a file was removed.
  for (const file of readdirSync(join(root, 'src'), { recursive: true })) sources.push(join('src', file));
  const builtMs = statSync(join(dist, 'index.js')).mtimeMs;
  return sources.some((file) => statSync(join(root, file)).mtimeMs > builtMs);
}

if (process.argv.includes('--if-stale') && !isStale()) process.exit(0);

// Built beside it and then put in its place: a build that was cut off is not taken for a whole one.
const part = join(root, `.dist-${process.pid}`);
process.on('exit', () => rmSync(part, { recursive: true, force: true }));
const windows = process.platform === 'win32';
const tsc = spawnSync(
  join(root, 'node_modules', '.bin', windows ? 'tsc.cmd' : 'tsc'),
  ['-p', 'tsconfig.build.json', '--outDir', part],
  // What npm prints for its caller to read (npm pack --json) is on stdout: we keep off it.
  { cwd: root, stdio: ['ignore', 2, 2], shell: windows },
);
if (tsc.status !== 0) process.exit(tsc.status ?? 1);
cpSync(join(root, 'src'), part, {
  recursive: true,
  filter: (path) => extname(path) === '' || ['.sql', '.lua', '.html', '.css', '.js'].includes(extname(path)),
});
rmSync(dist, { recursive: true, force: true });
renameSync(part, dist);
