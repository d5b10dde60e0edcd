// Compiles src to dist and copies what is not TypeScript (SQL, Lua, pages) beside it.
import { spawnSync } from 'node:child_process';
import { cpSync, rmSync } from 'node:fs';
import { dirname, extname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
rmSync(join(root, 'dist'), { recursive: true, force: true });
const tsc = spawnSync('tsc', ['-p', 'tsconfig.build.json'], {
  cwd: root,
  stdio: 'inherit',
  shell: process.platform === 'win32',
});
if (tsc.status !== 0) process.exit(tsc.status ?? 1);
cpSync(join(root, 'src'), join(root, 'dist'), {
  recursive: true,
  filter: (path) => extname(path) === '' || ['.sql', '.lua', '.html', '.css', '.js'].includes(extname(path)),
});
