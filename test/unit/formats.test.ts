import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { Layout } from '../../src/base/redis/layout.ts';
import { isNewerEntry } from '../../src/model/entry.ts';
import { ENTRY, LIKE_ENTRY, PARCEL, SHARED } from '../../src/model/formats.ts';
import { LIKE_ENTRIES } from '../../src/model/like-entry.ts';
import { decodeEntry, encodeEntry, ORDER_ENTRIES } from '../../src/model/stream-entry.ts';
import { LIKES } from '../../src/pipe/likes.ts';
import { ORDERS } from '../../src/pipe/orders.ts';
import { isNewerParcel, partitionOf, readParcel, writeParcel } from '../../src/pipe/parcel.ts';
import { retryMember } from '../../src/pipe/redis-streams/entry.ts';
import { readLetter, writeLetter } from '../../src/pipe/redis-streams/letter.ts';
import { format1, MESSAGES } from '../support/formats/format-1.ts';
import { LIKE_EVENTS, likes1 } from '../support/formats/likes-1.ts';
import { SEAT_MESSAGES, seats2 } from '../support/formats/seats-2.ts';

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
    expect(retryMember(ORDER_ENTRIES.encode(alone!), 3, 2)).toBe(format1.retry);
    const letter = writeLetter(3, 5, 'too long', encodeEntry(alone!));
    expect(`{"diedAtMs":1700000000000,${letter}`).toBe(format1.letter);
    expect(readLetter(ORDER_ENTRIES, 'sale:7', '101', format1.letter)).toEqual({
      ...{ id: '101', channel: 'sale:7', message: alone, error: 'too long', attempts: 5, diedAtMs: 1_700_000_000_000 },
    });
  });

  it('of parcels, which have number 2', () => {
    const place = { channel: 'sale:7', epoch: 3, entryId: '1700000000000-1' };
    for (const [body, fields] of [
      [format1.parcel, format1.entries[0]!],
      [format1.probe, null],
    ] as const) {
      expect(writeParcel({ ...place, fields })).toBe(body);
      expect(readParcel(body)).toEqual({ ...place, fields });
    }
  });

  it('of the names of keys, and of partitions', () => {
    const { keys, list, wake, foreign } = ORDERS.places(new Layout('P'));
    const { of: _, ...names } = keys('7') as ReturnType<Layout['sale']>;
    expect(names).toEqual({
      ...{ begin: 'P:{7:0}:', gate: 'P:{7:0}:gate', head: 'P:{7:0}:gate', epochs: 'P:{7:0}:epochs' },
      ...{ retry: 'P:{7:0}:retry', dead: 'P:{7:0}:dead', decided: 'P:{7:0}:decided', emptied: 'P:{7:0}:emptied' },
    });
    expect([list, wake, foreign]).toEqual(['P:sales', 'P:wake', 'P:foreign']);
    // crc32 of the bare id: a relay of before sends the sale's entries into the same partition.
    const ids = ['1', '7', '42', '9007199254740993'];
    expect(ids.map((id) => partitionOf(`sale:${id}`, 8))).toEqual([7, 2, 0, 7]);
  });
});

describe('format 2: orders of seats', () => {
  const [alone] = SEAT_MESSAGES;

  it('of entries is read, and written the same', () => {
    expect(seats2.entries.flatMap((fields) => decodeEntry('7', fields))).toEqual(SEAT_MESSAGES);
    expect(encodeEntry(alone!)).toEqual(seats2.alone);
    for (const message of SEAT_MESSAGES) expect(decodeEntry('7', encodeEntry(message))).toEqual([message]);
  });

  it('of what waits to be tried again, of dead letters and of parcels, whose own numbers stay', () => {
    expect(retryMember(ORDER_ENTRIES.encode(alone!), 3, 2)).toBe(JSON.stringify(['2', '3', seats2.alone]));
    const letter = `{"diedAtMs":1700000000000,${writeLetter(3, 5, 'too long', encodeEntry(alone!))}`;
    expect(readLetter(ORDER_ENTRIES, 'sale:7', '201', letter)).toMatchObject({ id: '201', message: alone });
    const parcel = { channel: 'sale:7', epoch: 3, entryId: '1700000000000-1', fields: seats2.alone };
    expect(writeParcel(parcel)).toBe(seats2.parcel);
    expect(readParcel(seats2.parcel)).toEqual(parcel);
  });

  it('a version that reads format 1 only leaves such an entry alone', () => {
    expect(isNewerEntry(seats2.alone, { oldest: 1, newest: 1 })).toBe(true);
    expect(isNewerEntry(seats2.alone, ENTRY)).toBe(false);
  });
});

describe('format 1 of likes', () => {
  const [alone] = LIKE_EVENTS;

  it('of entries is read, and written the same', () => {
    const { decode, encode } = LIKE_ENTRIES;
    expect(likes1.entries.flatMap((fields) => decode('likes:3', fields))).toEqual(LIKE_EVENTS);
    expect(decode('likes:3', likes1.grouped)).toEqual(LIKE_EVENTS);
    expect(encode(alone!)).toEqual(likes1.entries[0]);
    for (const event of LIKE_EVENTS) expect(decode('likes:3', encode(event))).toEqual([event]);
  });

  it('of what waits to be tried again, and of dead letters', () => {
    expect(retryMember(LIKE_ENTRIES.encode(alone!), 7, 2)).toBe(likes1.retry);
    expect(LIKE_ENTRIES.idOf(alone!)).toBe(likes1.letterId);
    expect(readLetter(LIKE_ENTRIES, 'likes:3', likes1.letterId, likes1.letter)).toEqual({
      ...{
        id: likes1.letterId,
        channel: 'likes:3',
        message: alone,
        error: 'too long',
        attempts: 5,
        diedAtMs: 1_700_000_000_000,
      },
    });
  });

  it('of parcels, which have number 3', () => {
    const place = { channel: 'likes:3', epoch: 7, entryId: '1700000000000-1' };
    for (const [body, fields] of [
      [likes1.parcel, likes1.entries[0]!],
      [likes1.probe, null],
    ] as const) {
      expect(writeParcel({ ...place, fields })).toBe(body);
      expect(readParcel(body)).toEqual({ ...place, fields });
    }
  });

  it('of the names of keys', () => {
    const { keys, list, wake, foreign } = LIKES.places(new Layout('P'));
    const { begin } = likes1;
    expect(keys('likes:3')).toEqual({
      ...{ begin, head: `${begin}head`, epochs: `${begin}epochs`, retry: `${begin}retry` },
      ...{ dead: `${begin}dead`, decided: `${begin}decided` },
    });
    expect([list, wake, foreign]).toEqual([null, 'P:wake:likes', 'P:foreign:likes']);
  });
});

describe('a parcel', () => {
  it('of each number names what that number can say', () => {
    expect(readParcel('[3,"sale:7",3,"1-0",null]')).toEqual({
      ...{ channel: 'sale:7', epoch: 3, entryId: '1-0', fields: null },
    });
    for (const body of ['[2,"likes:3",3,"1-0",null]', '[3,"7",3,"1-0",null]', '[3,"Likes:3",3,"1-0",null]']) {
      expect([readParcel(body), isNewerParcel(body)], body).toEqual([null, false]);
    }
  });
});

describe('what a newer version has written', () => {
  const next = String(ENTRY.newest + 1);

  it('is told from what nobody has written', () => {
    const [, ...rest] = format1.entries[0]!;
    expect(isNewerEntry([next, ...rest], ENTRY)).toBe(true);
    expect(isNewerEntry(['12', 'anything'], LIKE_ENTRY)).toBe(true);
    for (const name of ['', 'what', 'i1', 'o2', '0', '01', '-2', '2 ', '1', '2'])
      expect(isNewerEntry([name, ''], ENTRY)).toBe(false);
    expect(isNewerEntry([], ENTRY)).toBe(false);
    for (const name of ['7', 'likes:3', 'letters:12']) {
      const newer = JSON.stringify([PARCEL.newest + 1, name, 'anything']);
      expect([isNewerParcel(newer), readParcel(newer)]).toEqual([true, null]);
    }
    for (const body of [
      format1.parcel,
      likes1.parcel,
      'what',
      '[1,"1",1,"1-1",["odd"]]',
      '[99]',
      '[4,7]',
      '{"0":4,"1":"7"}',
    ]) {
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
  expect(row('like entry')).toContain(reads(LIKE_ENTRY));
  expect(row('parcel')).toContain(reads(PARCEL));
});
