import { spawn } from 'node:child_process';
import { afterAll, expect, it } from 'vitest';
import { until } from '../support/fault-wait.ts';
import { ADMIN_KEY, AUTH_SECRET, BIN, cleanUp, temporaryFolder, track } from '../support/server.ts';

/** A server prints either for a program or for a person, never a mix of both. */
afterAll(cleanUp);

async function serve(args: string[], level: string, said: (stdout: string) => boolean) {
  const child = spawn(process.execPath, [BIN, 'serve', '--port', '0', '--data', temporaryFolder(), ...args], {
    env: {
      ...process.env,
      LOG_LEVEL: level,
      DOORBUSTER_ADMIN_KEY: ADMIN_KEY,
      DOORBUSTER_AUTH_SECRET: AUTH_SECRET,
    },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  track(child);
  const output = { stdout: '', stderr: '' };
  for (const name of ['stdout', 'stderr'] as const) {
    child[name].on('data', (chunk: Buffer) => {
      output[name] += chunk;
    });
  }
  const ended = new Promise((resolve) => child.on('close', resolve));
  await until('it is open', 20_000, () => said(output.stdout));
  child.kill('SIGTERM');
  expect(await ended).toBe(0);
  const lines = (text: string): string[] => text.split('\n').filter((line) => line !== '');
  return { stdout: lines(output.stdout), stderr: lines(output.stderr) };
}

const isJson = (line: string): boolean => line.startsWith('{') && JSON.parse(line) !== null;

it.concurrent.each(['info', 'fatal'])(
  'LOG_LEVEL=%s: every line of stdout is JSON, and one says where it listens',
  async (level) => {
    const { stdout, stderr } = await serve([], level, (text) => text.includes('listening on'));
    expect(stdout.filter((line) => !isJson(line))).toEqual([]);
    const said = stdout.map((line) => JSON.parse(line)).filter(({ msg }) => msg.startsWith('doorbuster: listening on'));
    expect(said).toMatchObject([{ level: 30, url: expect.stringMatching(/^http:\/\/127\.0\.0\.1:\d+$/) }]);
    expect(stderr).toEqual([]);
  },
);

it.concurrent('a demo talks to a person: its words are on stdout, and the log is on stderr', async () => {
  const { stdout, stderr } = await serve(['--demo'], 'info', (text) => text.includes('Press Ctrl-C to stop.'));
  expect(stdout.filter((line) => line.startsWith('{'))).toEqual([]);
  expect(stderr.length).toBeGreaterThan(0);
  expect(stderr.filter((line) => !isJson(line))).toEqual([]);
});
