import { createHash } from 'node:crypto';
import { decodeSeatMap, rangesOf, type SeatState } from '../../model/seat-map.ts';
import type { SaleSnapshot } from '../../model/snapshot.ts';
import { Hall, shownLetters } from '../hall.ts';
import type { SeatChange, SeatRevision, SeatsSeen } from '../port.ts';

/** As in _seats.lua: a byte of a row is a number of seats above NONE, and at most MOST above it. */
const NONE = 27;
const MOST = 100;

interface Written {
  readonly text: string;
  readonly fields: ReadonlyMap<string, string>;
}

/** The seats of a sale that is being built, by item id. */
export class Halls {
  readonly #items: { id: string; number: number; hall: Hall; blocked: readonly number[]; rev: number }[] = [];
  readonly #byId = new Map<string, Hall>();
  #written: Written | null = null;

  constructor(items: SaleSnapshot['items']) {
    for (const [at, { id, seats, rev }] of items.entries()) {
      if (seats === undefined) continue;
      const hall = new Hall(decodeSeatMap(seats.map));
      hall.block(seats.blocked);
      this.#items.push({ id, number: at + 1, hall, blocked: seats.blocked, rev });
      this.#byId.set(id, hall);
    }
  }

  /** Undefined: the item is counted. */
  of(itemId: string): Hall | undefined {
    return this.#byId.get(itemId);
  }

  /**
   * What is written when all orders have their seats: the key `seats`, and fields of `items`. The key contains the letters of all
   * seats, then a byte a row for its longest free run, one for its free seats, and where the rows begin; each for all items. It is
   * ASCII throughout.
   */
  written(): Written {
    this.#written ??= this.#write();
    return this.#written;
  }

  #write(): Written {
    const fields = new Map<string, string>();
    if (this.#items.length === 0) return { text: '', fields };
    for (const { hall } of this.#items) hall.changes();
    const parts = [
      this.#items.map(({ hall }) => hall.letters()),
      this.#items.map(({ hall }) => rowBytes(hall.longest)),
      this.#items.map(({ hall }) => rowBytes(hall.free)),
      this.#items.map(({ hall }) => firsts(hall)),
    ];
    const places: number[][] = [];
    let length = 0;
    for (const ofItems of parts) {
      places.push(
        ofItems.map((bytes) => {
          length += bytes.length;
          return length - bytes.length;
        }),
      );
    }
    let further = 0;
    for (const [at, { number, hall, blocked, rev }] of this.#items.entries()) {
      const [states, longest, free, begin] = places.map((ofItems) => ofItems[at]!);
      fields.set(`g:${number}`, [states, hall.map.size, hall.map.rows.length, longest, free, begin].join(' '));
      fields.set(`m:${number}`, String(rev));
      fields.set(`w:${number}`, String(rev));
      fields.set(`B:${number}`, createHash('sha1').update(rangesText(blocked)).digest('hex'));
      for (const [seat, claims] of hall.further) {
        fields.set(`d:${number}:${seat}`, String(claims));
        further += claims;
      }
    }
    fields.set('N', '0');
    if (further > 0) fields.set('D', String(further));
    return { text: Buffer.concat(parts.flat()).toString('latin1'), fields };
  }
}

function rowBytes(values: Readonly<Uint16Array>): Buffer {
  return Buffer.from(Array.from(values, (value) => NONE + Math.min(value, MOST)));
}

/** Where each row begins, and behind the last: three digits to base 128. */
function firsts({ map }: Hall): Buffer {
  const all = [...map.rows.map(({ first }) => first), map.size];
  return Buffer.from(all.flatMap((first) => [first >> 14, (first >> 7) & 127, first & 127]));
}

/** `0-4,7-7` */
export function rangesText(seats: readonly number[]): string {
  return rangesOf(seats)
    .map(({ from, to }) => `${from}-${to}`)
    .join(',');
}

/** `5.6.7` */
export function dotted(seats: readonly number[]): string {
  return seats.join('.');
}

export function seatsIn(text: string): number[] {
  return text.split('.').map(Number);
}

/** What seats.lua returns. */
export function readSeats(epoch: number, reply: readonly string[]): SeatsSeen {
  const [n, kind, ...rest] = reply;
  const revision: SeatRevision = { epoch, n: Number(n) };
  if (kind === 'changes') return { revision, changes: rest.map(readChange) };
  const items: { itemId: string; states: string }[] = [];
  for (let at = 0; at < rest.length; at += 2) {
    items.push({ itemId: rest[at]!, states: shownLetters(rest[at + 1]!) });
  }
  return { revision, items };
}

function readChange(line: string): SeatChange {
  const [itemId, state, seats] = line.split(' ') as [string, SeatState, string];
  return { itemId, seats: seatsIn(seats), state };
}
