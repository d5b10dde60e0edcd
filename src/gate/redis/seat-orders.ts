import { keyName } from '../../base/redis/layout.ts';
import { bulk } from '../../base/redis/sent-script.ts';
import { encodePlacedBy } from '../../model/stream-entry.ts';
import type { AdmitRequest } from '../port.ts';
import { type Admission, BATCH_MAX, type BatchKind, type EncodedBatch, type ReadOn } from './admissions.ts';
import { scriptNamed } from './scripts.ts';
import { dotted, seatsIn } from './seats.ts';
import { admit, itemFactsOf, refuse, saleFactsOf } from './verdicts.ts';

/** An order weighs as much as four seats: a call has at most 64 orders, and fewer if they are for many seats. */
const WEIGHT_MIN = 4;

/** Orders for seats, which admit-seats.lua decides. */
export const SEAT_ORDERS: BatchKind = {
  script: () => scriptNamed('admit-seats'),
  keys: ({ items, holds, keys, stream, seats, changes }) => [items, holds, keys, stream, seats, changes],
  weightOf: ({ quantity }) => Math.min(Math.max(quantity, WEIGHT_MIN), BATCH_MAX),
  // As many orders as counted ones may be waiting and under way together.
  waitingMax: 1024 * WEIGHT_MIN,
  encode: (entries) => new SeatBatch(entries),
};

class SeatBatch implements EncodedBatch {
  readonly wire: string;
  readonly parts: number;
  readonly #entries: readonly Admission[];
  /** By code, counted from 1. */
  readonly #items = new Map<string, number>();

  constructor(entries: readonly Admission[]) {
    this.#entries = entries;
    const requests = entries.map(({ request }) => request);
    let orders = '';
    for (const request of requests) {
      const { orderId, buyer, itemCode, fingerprint, key } = request;
      const number = this.#items.get(itemCode) ?? this.#items.size + 1;
      this.#items.set(itemCode, number);
      orders +=
        bulk(orderId) +
        bulk(buyer) +
        bulk(String(number)) +
        bulk(wantOf(request)) +
        bulk(fingerprint) +
        bulk(key === null ? '' : keyName(buyer, key));
    }
    const codes = [...this.#items.keys()];
    const placed = requests.some(({ placedBy }) => placedBy !== undefined);
    const head = [String(entries.length), String(codes.length), ...codes].map(bulk).join('');
    this.wire = head + orders + (placed ? bulk(encodePlacedBy(requests)) : '');
    this.parts = 2 + codes.length + 6 * entries.length + (placed ? 1 : 0);
  }

  /** Reads the lines that admit-seats.lua returns. */
  read(reply: string, on: ReadOn): void {
    const lines = reply.split('\n');
    const sale = saleFactsOf(lines[0]!);
    for (const [at, entry] of this.#entries.entries()) {
      const line = lines[1 + this.#items.size + at]!;
      const item = itemFactsOf(lines[this.#items.get(entry.request.itemCode)!]!);
      const [outcome, slots, seats] = line.split(' ');
      if (outcome === '0') admit(entry, item!, seatsIn(slots!), seatsIn(seats!), sale, on);
      else refuse(entry, line, sale, on);
    }
  }
}

function wantOf({ seats, quantity }: AdmitRequest): string {
  if (typeof seats !== 'string') return dotted(seats!);
  return `${seats === 'together' ? 't' : 'a'}${quantity}`;
}
