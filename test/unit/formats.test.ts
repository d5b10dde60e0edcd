import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { ENTRY, PARCEL, SHARED } from '../../src/model/formats.ts';
import { decodeEntry, encodeEntry, isNewerEntry } from '../../src/model/stream-entry.ts';
import { isNewerParcel, readParcel, writeParcel } from '../../src/pipe/parcel.ts';
import { retryMember } from '../../src/pipe/redis-streams/entry.ts';
import { readLetter, writeLetter } from '../../src/pipe/redis-streams/letter.ts';
import { format1, MESSAGES } from '../support/formats/format-1.ts';

/**
 * What processes of one shop write for each other, byte by byte (docs/internals/formats.md). A test that fails here says: a
 * process of the version before would not read this. Give it a number.
 */
describe('format 1', () => {
  const [alone, ...others] = MESSAGES;

  it('of entries is read, and written the same', () => {
    expect(format1.entries.flatMap((fields) => decodeEntry('7', fields))).toEqual(MESSAGES);
    expect(encodeEntry(alone!)).toEqual(format1.entries[0]);
    for (const message of others) expect(decodeEntry('7', encodeEntry(message))).toEqual([message]);
  });

  it('of what waits to be tried again, and of dead letters', () => {
    expect(retryMember(alone!, 3, 2)).toBe(format1.retry);
    const letter = writeLetter(3, 5, 'too long', encodeEntry(alone!));
    expect(`{"diedAtMs":1700000000000,${letter}`).toBe(format1.letter);
    expect(readLetter('7', '101', format1.letter)).toEqual({
      ...{ message: alone, error: 'too long', attempts: 5, diedAtMs: 1_700_000_000_000 },
    });
  });

  it('of parcels, which have number 2', () => {
    const place = { saleId: '7', epoch: 3, entryId: '1700000000000-1' };
    for (const [body, fields] of [
      [format1.parcel, format1.entries[0]!],
      [format1.probe, null],
    ] as const) {
      expect(writeParcel({ ...place, fields })).toBe(body);
      expect(readParcel(body)).toEqual({ ...place, fields });
    }
  });
});

describe('what a newer version has written', () => {
  const next = String(ENTRY.newest + 1);

  it('is told from what nobody has written', () => {
    const [, ...rest] = format1.entries[0]!;
    expect(isNewerEntry([next, ...rest])).toBe(true);
    expect(isNewerEntry(['12', 'anything'])).toBe(true);
    for (const name of ['', 'what', 'i1', 'o2', '0', '01', '-2', '2 ', '1'])
      expect(isNewerEntry([name, ''])).toBe(false);
    expect(isNewerEntry([])).toBe(false);
    const newer = JSON.stringify([PARCEL.newest + 1, '7', 'anything']);
    expect([isNewerParcel(newer), readParcel(newer)]).toEqual([true, null]);
    for (const body of [format1.parcel, 'what', '[1,"1",1,"1-1",["odd"]]', '[99]', '[3,7]', '{"0":3,"1":"7"}']) {
      expect(isNewerParcel(body), body).toBe(false);
    }
  });
});

it('the page of the formats names the numbers of this version', () => {
  const page = readFileSync(new URL('../../docs/internals/formats.md', import.meta.url), 'utf8');
  const row = (name: string): string => page.split('\n').find((line) => line.startsWith(`| ${name} `)) ?? '';
  const reads = ({ oldest, newest }: typeof SHARED): string =>
    oldest === newest ? `| ${newest} ` : `| ${oldest}, ${newest} `;
  expect(row('shared')).toContain(reads(SHARED));
  expect(row('entry')).toContain(reads(ENTRY));
  expect(row('parcel')).toContain(reads(PARCEL));
});
