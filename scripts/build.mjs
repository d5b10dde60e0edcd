// Compiles src to dist and copies what is not TypeScript (SQL, Lua, pages, lists) beside it.
// --if-stale: only if dist is missing or older than the sources.
import { spawnSync } from 'node:child_process';
import { cpSync, existsSync, readdirSync, renameSync, rmSync, statSync } from 'node:fs';
import { dirname, extname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const dist = join(root, 'dist');

function isStale() {
  if (!existsSync(dist)) return true;
  const sources = ['src', 'package.json', 'tsconfig.json', 'tsconfig.build.json', 'scripts/build.mjs'];
  // Folders, too: removing a file changes the time of its folder.
  for (const file of readdirSync(join(root, 'src'), { recursive: true })) sources.push(join('src', file));
  const builtMs = statSync(join(dist, 'index.js')).mtimeMs;
  return sources.some((file) => statSync(join(root, file)).mtimeMs > builtMs);
}

if (process.argv.includes('--if-stale') && !isStale()) process.exit(0);

// Build beside dist, then move it into place: an interrupted build must not look complete.
const part = join(root, `.dist-${process.pid}`);
process.on('exit', () => rmSync(part, { recursive: true, force: true }));
const windows = process.platform === 'win32';
const tsc = spawnSync(
  join(root, 'node_modules', '.bin', windows ? 'tsc.cmd' : 'tsc'),
  ['-p', 'tsconfig.build.json', '--outDir', part],
  // stdout belongs to npm, whose caller may parse it (npm pack --json).
  { cwd: root, stdio: ['ignore', 2, 2], shell: windows },
);
if (tsc.status !== 0) process.exit(tsc.status ?? 1);
cpSync(join(root, 'src'), part, {
  recursive: true,
  filter: (path) => extname(path) === '' || ['.sql', '.lua', '.html', '.css', '.js', '.txt'].includes(extname(path)),
});
rmSync(dist, { recursive: true, force: true });
renameSync(part, dist);
