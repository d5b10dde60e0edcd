import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { LEDGER_FILE, lockDataFolder } from '../../src/ledger/drivers/sqlite/folder.ts';
import { sleep, until } from '../support/fault-wait.ts';
import { LONG } from '../support/long.ts';
import { ADMIN_KEY, AUTH_SECRET, BIN, cleanUp, temporaryFolder } from '../support/server.ts';

/**
 * npm runs a script in a shell, and neither of them tells the script when it was ended. A server that npm started must
 * notice by itself that they are gone (P10: otherwise it would keep the data folder locked).
 */

const LINUX = existsSync('/proc/self/stat');
const groups = new Set<ChildProcess>();
afterAll(async () => {
  for (const { pid } of groups) {
    try {
      // The whole group: npm, its shell, and all their children.
      process.kill(-pid!, 'SIGKILL');
    } catch {
      // All of them have ended.
    }
  }
  await cleanUp();
});

/** A project that has doorbuster installed and a script that starts it. */
function project(start = 'doorbuster serve --port 0'): string {
  const folder = temporaryFolder();
  mkdirSync(join(folder, 'node_modules', '.bin'), { recursive: true });
  symlinkSync(BIN, join(folder, 'node_modules', '.bin', 'doorbuster'));
  writeFileSync(join(folder, 'package.json'), JSON.stringify({ name: 'shop', private: true, scripts: { start } }));
  return folder;
}

/** Runs npm in its own process group. `gone` resolves when npm and all processes that share its output have ended. */
function npm(command: string, args: string[], cwd: string, env: Record<string, string> = {}) {
  const child = spawn(command, args, {
    cwd,
    detached: true,
    env: {
      ...process.env,
      PATH: `${dirname(process.execPath)}:${process.env['PATH']}`,
      DOORBUSTER_ADMIN_KEY: ADMIN_KEY,
      DOORBUSTER_AUTH_SECRET: AUTH_SECRET,
      LOG_LEVEL: 'info',
      npm_config_update_notifier: 'false',
      ...env,
    },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  groups.add(child);
  let output = '';
  const hear = (chunk: Buffer): void => {
    output += chunk;
  };
  child.stdout.on('data', hear);
  child.stderr.on('data', hear);
  let gone = false;
  child.on('close', () => {
    gone = true;
  });
  return { child, output: () => output, gone: () => gone };
}

it.runIf(LONG && LINUX)('a server with a session of its own outlives what started it', async () => {
  const scripts = `setsid '${process.execPath}' '${BIN}' serve --port 0 & echo $! > server.pid; sleep 2`;
  const folder = project(scripts);
  const { output } = npm('npm', ['start'], folder, { DOORBUSTER_DATA: temporaryFolder() });
  const url = (await until('it listens', 20_000, () => /http:\/\/127\.0\.0\.1:\d+/.exec(output())))[0];
  const pid = Number(readFileSync(join(folder, 'server.pid'), 'utf8'));
  try {
    const status = readFileSync(`/proc/${pid}/stat`, 'utf8');
    await until(
      'npm has ended',
      20_000,
      () => readFileSync(`/proc/${pid}/stat`, 'utf8').split(' ')[3] !== status.split(' ')[3],
    );
    // As long as four polls.
    await sleep(1_000);
    expect((await fetch(`${url}/healthz`)).status).toBe(200);
  } finally {
    process.kill(pid, 'SIGKILL');
  }
});

// Concurrent, because each mostly waits for npm.
it.concurrent.each([
  { how: 'npm start', command: 'npm', args: ['start'], signal: 'SIGTERM' },
  { how: 'npx doorbuster serve', command: 'npx', args: ['doorbuster', 'serve', '--port', '0'], signal: 'SIGKILL' },
] as const)('a server of $how drains and leaves the data folder when npm gets $signal (P10)', async (start) => {
  // Without /proc a server only sees the shell, which survives a killed npm.
  const signal = LINUX ? start.signal : 'SIGTERM';
  const data = temporaryFolder();
  const { child, output, gone } = npm(start.command, [...start.args], project(), { DOORBUSTER_DATA: data });
  await until('it listens', 20_000, () => output().includes('listening on http'));
  expect(() => lockDataFolder(data).unlock()).toThrow('another doorbuster process');

  child.kill(signal);
  await until('the server has ended', 10_000, gone);
  expect(output()).toContain('closing: refusing new orders, finishing requests in flight');
  lockDataFolder(data).unlock();
  // Closed in order.
  expect(existsSync(join(data, `${LEDGER_FILE}-wal`))).toBe(false);
});

it.concurrent('a worker of npx doorbuster worker ends when npm gets SIGTERM (P10)', async () => {
  // Neither answers: it waits for them.
  const servers = { REDIS_URL: 'redis://127.0.0.1:1', DATABASE_URL: 'postgres://nobody@127.0.0.1:1/none' };
  const { child, output, gone } = npm('npx', ['doorbuster', 'worker'], project(), servers);
  await until('it has started', 20_000, () => output().includes('retrying every second'));
  child.kill('SIGTERM');
  await until('the worker has ended', 10_000, gone);
});
