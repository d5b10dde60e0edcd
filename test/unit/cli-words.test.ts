import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, expect, it, vi } from 'vitest';
import { main } from '../../src/cli/main.ts';

/** A usage error is one line that says what is wrong and what to do. */
afterEach(() => vi.restoreAllMocks());

async function run(...args: string[]): Promise<{ code: number; stdout: string; stderr: string }> {
  const said = { stdout: '', stderr: '' };
  vi.spyOn(console, 'log').mockImplementation((line) => {
    said.stdout += line;
  });
  vi.spyOn(console, 'error').mockImplementation((line) => {
    said.stderr += line;
  });
  return { code: await main(args), ...said };
}

it.each<[string[], string]>([
  [['serve', '--prot', '1'], 'doorbuster serve: there is no option --prot; is it --port?'],
  [['serve', '--colour', 'red'], 'doorbuster serve: there is no option --colour; --help lists them'],
  [['serve', '--port', '--demo'], 'doorbuster serve: --port needs a value'],
  [['serve', '--port'], 'doorbuster serve: --port needs a value'],
])('%j is used wrongly', async (args, stderr) => {
  expect(await run(...args)).toEqual({ code: 2, stdout: '', stderr });
});

it('help <command> is <command> --help', async () => {
  expect(await run('help', 'serve')).toEqual(await run('serve', '--help'));
  expect((await run('help', 'serve')).stdout).toMatch(/^Usage: doorbuster serve/);
  expect(await run('help', 'nope')).toMatchObject({ code: 2, stderr: expect.stringContaining('no command "nope"') });
});

it('check of an address where another application answers 404 says that a mounted shop needs its path', async () => {
  const server = createServer((_, response) => response.writeHead(404).end('Cannot POST')).listen(0, '127.0.0.1');
  await new Promise((resolve) => server.once('listening', resolve));
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const { code, stderr } = await run('check', '--url', url, '--admin-key', 'k');
  server.close();
  expect([code, stderr]).toEqual([
    1,
    expect.stringMatching(/has no such route \(404\): .*--url needs its path.*\/shop$/),
  ]);
});
