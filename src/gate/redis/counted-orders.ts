import { keyName } from '../../base/redis/layout.ts';
import { bulk } from '../../base/redis/sent-script.ts';
import { encodePlacedBy } from '../../model/stream-entry.ts';
import { type Admission, BATCH_MAX, type BatchKind, type EncodedBatch, type ReadOn } from './admissions.ts';
import { scriptNamed } from './scripts.ts';
import { admit, itemFactsOf, refuse, saleFactsOf } from './verdicts.ts';

/** Orders for counted items, which admit.lua decides. 256 of them take about a third of a millisecond of Redis. */
export const COUNTED_ORDERS: BatchKind = {
  script: () => scriptNamed('admit'),
  keys: ({ items, holds, keys, stream }) => [items, holds, keys, stream],
  weightOf: () => 1,
  waitingMax: BATCH_MAX,
  encode: (entries) => new CountedBatch(entries),
};

/** What several orders of a batch have in common: mostly all of them. */
interface Want {
  readonly itemCode: string;
  readonly quantity: number;
  readonly fingerprint: string;
}

class CountedBatch implements EncodedBatch {
  readonly wire: string;
  readonly parts: number;
  readonly #entries: readonly Admission[];
  readonly #wants: Want[] = [];
  /** For each order the place of what it wants in `wants`. */
  readonly #places: number[] = [];

  constructor(entries: readonly Admission[]) {
    this.#entries = entries;
    const wants = this.#wants;
    const places = this.#places;
    let width = 0;
    for (const { request } of entries) width = Math.max(width, request.orderId.length);
    let ids = '';
    let buyers = '';
    let keys = '';
    let keyed = false;
    let placed = false;
    const different = new Set<string>();
    let last: Want | null = null;
    let place = 0;
    for (const { request } of entries) {
      const { orderId, buyer, key, itemCode, quantity, fingerprint } = request;
      if (
        last === null ||
        last.quantity !== quantity ||
        last.itemCode !== itemCode ||
        last.fingerprint !== fingerprint
      ) {
        place = wants.findIndex(
          (want) => want.quantity === quantity && want.itemCode === itemCode && want.fingerprint === fingerprint,
        );
        if (place < 0) place = wants.push({ itemCode, quantity, fingerprint }) - 1;
        last = wants[place]!;
      }
      places.push(place);
      different.add(buyer);
      placed ||= request.placedBy !== undefined;
      ids += ids === '' ? orderId.padStart(width) : orderId.padStart(width + 1);
      buyers += bulk(buyer);
      if (key === null) keys += NOTHING;
      else {
        keyed = true;
        keys += bulk(keyName(buyer, key));
      }
    }
    const n = entries.length;
    const w = wants.length;
    let head =
      bulk(String(n)) +
      bulk(String(w)) +
      (keyed ? YES : NOTHING) +
      (different.size < n ? YES : NOTHING) +
      bulk(String(width));
    for (const want of wants) head += bulk(want.itemCode) + bulk(String(want.quantity)) + bulk(want.fingerprint);
    const numbers = w > 1 ? places.map((each) => bulk(String(each + 1))).join('') : '';
    const placedBy = placed ? bulk(encodePlacedBy(entries.map(({ request }) => request))) : '';
    this.wire = head + bulk(ids) + buyers + numbers + (keyed ? keys : '') + placedBy;
    this.parts = 5 + 3 * w + 1 + n * (1 + (w > 1 ? 1 : 0) + (keyed ? 1 : 0)) + (placed ? 1 : 0);
  }

  /** Reads the lines that admit.lua returns. */
  read(reply: string, on: ReadOn): void {
    const entries = this.#entries;
    const wants = this.#wants;
    const lines = reply.split('\n');
    const sale = saleFactsOf(lines[0]!);
    const items = wants.map((_, at) => itemFactsOf(lines[1 + at]!));
    let at = wants.length;
    let line = '';
    let times = 0;
    for (let i = 0; i < entries.length; i++) {
      const entry = entries[i]!;
      if (times === 0) {
        const run = lines[++at]!;
        const blank = run.indexOf(' ');
        times = Number(run.slice(0, blank));
        line = run.slice(blank + 1);
      }
      times--;
      if (line.startsWith('0 ')) {
        const slots = line === '0 1' ? [1] : line.slice(2).split('.').map(Number);
        admit(entry, items[this.#places[i]!]!, slots, null, sale, on);
      } else {
        refuse(entry, line, sale, on);
      }
    }
  }
}

const NOTHING = bulk('');
const YES = bulk('1');
