// biome-ignore-all lint/suspicious/noTemplateCurlyInString: the source to be patched contains template strings
import type { Mutant } from './mutant.ts';

const MAPS = ['test/unit/seat-maps.test.ts'];
const ORDERS = ['test/unit/seat-orders.test.ts'];
const BOARD = ['test/unit/seat-board.test.ts'];
const BLOCK = ['test/unit/block-seats.test.ts'];
const KEYS = ['test/property/seat-keys.property.test.ts'];
const MOVES = ['test/faults/seat-moves.test.ts'];

/** Numbered seats between HTTP and the gate. */
export const EDGE_SEATS: readonly Mutant[] = [
  {
    name: 'seat maps: a made-up id is looked for in the tables',
    file: 'src/sales/seat-maps.ts',
    find: 'if (!(await this.#on.exists(saleId))) return null;',
    replace: '',
    tests: MAPS,
  },
  {
    name: 'seat maps: everybody reads a map',
    file: 'src/sales/seat-maps.ts',
    find: 'this.#reading.set(saleId, reading);',
    replace: '',
    tests: MAPS,
  },
  {
    name: 'seat maps: nothing leaves',
    file: 'src/sales/seat-maps.ts',
    find: 'this.#drop(oldest);',
    replace: 'return;',
    tests: MAPS,
  },
  {
    name: 'seat orders: seats of two items are ordered in part',
    file: 'src/orders/seat-orders.ts',
    find: 'if (found.length > 1)',
    replace: 'if (found.length > 2)',
    tests: ['test/integration/http-seats.test.ts'],
    only: 'bad input',
  },
  {
    name: 'seat orders: a seat twice',
    file: 'src/orders/seat-orders.ts',
    find: 'if (twice !== null)',
    replace: 'if (twice === 0)',
    tests: ORDERS,
  },
  {
    name: 'seat orders: together is any',
    file: 'src/orders/seat-orders.ts',
    find: "seats: 'together' }, run)",
    replace: "seats: 'any' }, run)",
    tests: ORDERS,
  },
  {
    name: 'P5: a key is not bound to `together`',
    file: 'src/orders/place.ts',
    find: "seats === undefined || seats === 'any'",
    replace: "seats === undefined || typeof seats === 'string'",
    tests: KEYS,
  },
  {
    name: 'P5: a key is not bound to the seats',
    file: 'src/orders/place.ts',
    find: "seats === undefined || seats === 'any'",
    replace: "seats === undefined || seats !== 'together'",
    tests: KEYS,
  },
  {
    name: 'seats shown: what has changed back is not told to whoever comes back',
    file: 'src/views/seats.ts',
    find: 'if (isDifference || from.epoch !== to.epoch) return false;',
    replace: '',
    tests: BOARD,
  },
  {
    name: 'seats shown: what a reader has brought in is lost for watchers',
    file: 'src/views/seats.ts',
    find: 'kept.follow(seen.revision, seen.changes);',
    replace: 'kept.follow(seen.revision, seen.changes);\n      kept.take();',
    tests: BOARD,
  },
  {
    name: 'seats shown: those who waited get nothing',
    file: 'src/views/seats.ts',
    find: 'if (isFirst) this.#told',
    replace: 'this.#told',
    tests: BOARD,
  },
  {
    name: 'seats shown: an event may be as long as it wants',
    file: 'src/views/seats.ts',
    find: 'if (chars > this.seats.size + SNAPSHOT_CHARS) return this.snapshot();',
    replace: '',
    tests: BOARD,
  },
  {
    name: 'seats shown: a crowd beyond the first is not told',
    file: 'src/views/pace.ts',
    find: 'from += TOLD_AT_ONCE',
    replace: 'from += all.length',
    tests: BOARD,
  },
  {
    name: 'blocking: seats are free while nobody knows',
    file: 'src/sales/seats.ts',
    find: 'if (error instanceof RetryableError) this.#doubt(auditId, saleId, held);\n      else await',
    replace: 'await',
    tests: BLOCK,
  },
  {
    name: 'blocking: what was held of the first item stays held',
    file: 'src/sales/seats.ts',
    find: 'await this.#drop(saleId, held, auditId);\n        return this.#named(',
    replace: 'return this.#named(',
    tests: BLOCK,
  },
  {
    name: 'moving: the house lets the new seats go before the ledger has moved the order',
    file: 'src/orders/life/reseat.ts',
    find: "  reached('move:held');",
    replace: "  await on.gate.dropHouseHold(saleId, itemId, hold);\n  reached('move:held');",
    tests: MOVES,
    only: 'at move:held: nobody',
  },
];
