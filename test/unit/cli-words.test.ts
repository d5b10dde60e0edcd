import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { afterAll, afterEach, expect, it, vi } from 'vitest';
import { main } from '../../src/cli/main.ts';
import { cleanUp, temporaryFolder } from '../support/server.ts';

/** A usage error is one line that says what is wrong and what to do. */
afterEach(() => vi.restoreAllMocks());
afterAll(cleanUp);

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
  [['serve', 'extra'], 'doorbuster serve: takes no argument "extra"; --help lists the options'],
  [['sevre'], 'doorbuster: there is no command "sevre"; is it serve?'],
  [['buy'], 'doorbuster: there is no command "buy"; doorbuster --help lists them'],
  [
    ['crowd', '--url', 'http://127.0.0.1:1', '--sale', '7', '--buyers', '1', '--posts', '5'],
    'doorbuster crowd: --posts is about likes: it needs --likes',
  ],
  [
    ['crowd', '--url', 'http://127.0.0.1:1', '--likes', '--buyers', '1', '--sale', '7'],
    'doorbuster crowd: --sale is about orders: it does not go with --likes',
  ],
])('%j is used wrongly', async (args, stderr) => {
  expect(await run(...args)).toEqual({ code: 2, stdout: '', stderr });
});

it('help <command> is <command> --help', async () => {
  expect(await run('help', 'serve')).toEqual(await run('serve', '--help'));
  expect((await run('help', 'serve')).stdout).toMatch(/^Usage: doorbuster serve/);
  expect(await run('help', 'nope')).toMatchObject({ code: 2, stderr: expect.stringContaining('no command "nope"') });
});

it('migrate says that it created a ledger, which a misspelt --data does', async () => {
  const data = join(temporaryFolder(), 'shop');
  const made = await run('migrate', '--data', data);
  expect(made).toMatchObject({ code: 0, stdout: expect.stringMatching(/^new ledger created in .*shop: schema \d+$/) });
  const again = await run('migrate', '--data', data);
  expect(again).toMatchObject({ code: 0, stdout: expect.stringMatching(/shop: schema \d+, nothing to do$/) });
});

it('check of an address where another application answers 404 says that a mounted shop needs its path', async () => {
  const server = createServer((_, response) => response.writeHead(404).end('Cannot POST')).listen(0, '127.0.0.1');
  await new Promise((resolve) => server.once('listening', resolve));
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const { code, stderr } = await run('check', '--url', url, '--admin-key', 'k');
  const mounted = await run('check', '--url', `${url}/shop`, '--admin-key', 'k');
  server.close();
  expect(mounted.stderr).toMatch(/has no such route \(404\): there is no shop at this path; .* is at http:[\d./:]+$/);
  expect(mounted.stderr.match(/\/shop/g)).toHaveLength(1);
  expect([code, stderr]).toEqual([
    1,
    expect.stringMatching(/has no such route \(404\): .*--url needs its path.*\/shop$/),
  ]);
});
