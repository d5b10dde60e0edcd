import { spawn } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { ROOT, temporaryFolder } from './server.ts';

/** Runs a short program or a file in its own process, as a user of the library would. */
export async function spawnModule(source: string): Promise<{ code: number | null; output: string }> {
  const file = join(temporaryFolder(), 'program.mjs');
  writeFileSync(file, source);
  return spawnNode([file]);
}

export async function spawnNode(
  args: string[],
  env: Record<string, string> = {},
): Promise<{ code: number | null; output: string }> {
  const child = spawn(process.execPath, args, {
    cwd: ROOT,
    env: { ...process.env, ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.on('data', (chunk: Buffer) => {
      output += chunk;
    });
  }
  const late = setTimeout(() => child.kill('SIGKILL'), 5_000);
  const code = await new Promise<number | null>((resolve) => child.on('close', resolve));
  clearTimeout(late);
  return { code, output };
}
