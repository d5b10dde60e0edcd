import { spawnSync } from 'node:child_process';
import { truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, describe, expect, it, vi } from 'vitest';
import { main } from '../../src/cli/main.ts';
import type { SeatsImport } from '../../src/cli/seating-plan.ts';
import { saleSeatFaults, seatMapFaults } from '../../src/model/seat-map.ts';
import { stadium, theatre } from '../support/seating-plan.ts';
import { BIN, cleanUp, run, temporaryFolder } from '../support/server.ts';

afterAll(cleanUp);
afterEach(() => vi.restoreAllMocks());

function file(content: string | Uint8Array): string {
  const path = join(temporaryFolder(), 'plan.json');
  writeFileSync(path, content);
  return path;
}

async function inProcess(...args: string[]): Promise<{ code: number; stdout: string; stderr: string }> {
  const said = { stdout: '', stderr: '' };
  vi.spyOn(console, 'log').mockImplementation((text) => {
    said.stdout += text;
  });
  vi.spyOn(console, 'error').mockImplementation((text) => {
    said.stderr += text;
  });
  return { code: await main(['seats', ...args]), ...said };
}

describe('doorbuster seats import', () => {
  it('prints the definition on stdout and what it understood on stderr', async () => {
    const { code, stdout, stderr } = await run(['seats', 'import', file(JSON.stringify(theatre()))]);
    expect(code).toBe(0);
    const { items, ...sale } = JSON.parse(stdout) as SeatsImport['sale'];
    expect(sale).toEqual({
      name: 'Schauspielhaus, großer Saal',
      opensAt: null,
      closesAt: null,
      perBuyer: 1,
      payWithin: 900,
    });
    const seated = items.map(({ seats }, index) => ({ path: `/items/${index}/seats`, seats }));
    expect(seated.flatMap(({ seats, path }) => seatMapFaults(seats, path))).toEqual([]);
    expect(saleSeatFaults(seated)).toEqual([]);
    // A row is a line, so that a person can edit it.
    expect(stdout).toContain('\n        { "section": "Parkett", "row": "F", "from": 1, "to": 40, "x": 75,');
    for (const line of [
      /^Schauspielhaus, großer Saal: 2075 seats in 70 rows; 6 seats are left out$/,
      /^Parkett +30 +1196$/,
      /^parkett +30 +1096 {2}Parkett$/,
      /^ +2 {2}seats without a number, left out$/,
      /^Fill in what is null: opensAt, closesAt and each price\.$/,
    ]) {
      expect(stderr.split('\n').filter((said) => line.test(said))).toHaveLength(1);
    }
    expect(stderr).not.toContain('would refuse');
  });

  it('--json prints both as one object', async () => {
    const path = file(JSON.stringify(theatre()));
    const { code, stdout, stderr } = await inProcess('import', path, '--json');
    expect([code, stderr]).toEqual([0, '']);
    const result = JSON.parse(stdout) as SeatsImport;
    expect(Object.keys(result)).toEqual(['plan', 'seats', 'leftOut', 'sections', 'items', 'notes', 'faults', 'sale']);
    const plain = await inProcess('import', path);
    expect(JSON.parse(plain.stdout)).toEqual(result.sale);
  });

  it('exits with 1 if the server would refuse the definition, and says why', async () => {
    const { code, stdout, stderr } = await inProcess('import', file(JSON.stringify(stadium(1, 501))));
    expect(code).toBe(1);
    expect(stderr).toContain(
      'The server would refuse this definition:\n  /items/0/seats/0/to a row has at most 500 seats\n',
    );
    expect(JSON.parse(stdout)).toMatchObject({ name: 'Stadium' });
  });

  it('reads standard input, which is the file -', async () => {
    const ask = (input: string) =>
      spawnSync(process.execPath, [BIN, 'seats', 'import', '-'], { input, encoding: 'utf8' });
    const plan = JSON.stringify(stadium(1, 2));
    expect(ask(plan)).toMatchObject({ status: 0, stdout: `${(await inProcess('import', file(plan))).stdout}\n` });
    expect(ask('')).toMatchObject({
      status: 1,
      stderr: expect.stringMatching(/^doorbuster seats: standard input is not JSON/),
    });
  });

  it('reads 32 MiB and not a byte more', async () => {
    const path = file(JSON.stringify(theatre()));
    // The rest of the file is a hole, and no JSON.
    truncateSync(path, 32 * 2 ** 20);
    const full = await inProcess('import', path);
    expect([full.code, full.stderr]).toEqual([1, expect.stringContaining('is not JSON')]);
    truncateSync(path, 32 * 2 ** 20 + 1);
    const beyond = await inProcess('import', path);
    expect([beyond.code, beyond.stderr]).toEqual([1, expect.stringContaining('is larger than 32 MiB')]);
  });

  it('reads a file that begins with a byte order mark', async () => {
    expect(await inProcess('import', file(`\ufeff${JSON.stringify(stadium(1, 2))}`))).toMatchObject({ code: 0 });
  });

  it.each<[what: string, path: () => string, says: RegExp]>([
    ['missing', () => join(temporaryFolder(), 'none.json'), /none\.json does not exist$/],
    ['a folder', () => temporaryFolder(), / is a folder$/],
    ['below a file', () => join(file('{}'), 'plan.json'), /does not exist$/],
    ['empty', () => file(''), /plan\.json is not JSON: /],
    ['cut off', () => file(JSON.stringify(stadium(2, 2)).slice(0, -5)), /plan\.json is not JSON: /],
    ['not text', () => file(new Uint8Array([0x7b, 0xff, 0xfe, 0x7d])), /plan\.json is not UTF-8 text$/],
    ['another format', () => file('{"seats":[]}'), /plan\.json is not a seating plan: it has no zones$/],
    ['without seats', () => file('{"zones":[]}'), /plan\.json has no seats$/],
  ])('a file that is %s: one line, exit code 1', async (_, path, says) => {
    const { code, stdout, stderr } = await inProcess('import', path());
    expect([code, stdout]).toEqual([1, '']);
    expect(stderr).toMatch(says);
    expect(stderr).toMatch(/^doorbuster seats: [^\n]+$/);
  });

  it.each<[args: string[], says: string]>([
    [[], 'doorbuster seats: name the seating plan: doorbuster seats import <file>'],
    [['import'], 'doorbuster seats: name the seating plan: doorbuster seats import <file>'],
    [['imprt', 'x'], 'doorbuster seats: there is no "seats imprt"; is it seats import?'],
    [['plan.json'], 'doorbuster seats: there is no "seats plan.json"; --help says what there is'],
    [['import', 'x', 'y'], 'doorbuster seats: one file at a time: y is too many'],
    [['import', 'x', '--jsn'], 'doorbuster seats: there is no option --jsn; is it --json?'],
  ])('%j is used wrongly', async (args, stderr) => {
    expect(await inProcess(...args)).toEqual({ code: 2, stdout: '', stderr });
  });
});
