import type { Mutant } from './mutant.ts';

const ROOM = 'src/orders/life';
const ORDER = ['test/unit/life-order.test.ts'];
const LANES = ['test/unit/life-lanes.test.ts'];

export const LIFE: readonly Mutant[] = [
  {
    name: 'life: the units of a paid order are given back',
    file: 'src/model/life.ts',
    find: "return status === 'paid' ? 'sold' : null;",
    replace: 'return null;',
    tests: ORDER,
  },
  {
    name: 'lanes: a payment is looked after twice at once',
    file: `${ROOM}/lanes.ts`,
    find: "if (lane.known.has(attempt.id)) return 'taken';",
    replace: '',
    tests: LANES,
  },
  {
    name: 'lanes: a silent provider is asked about everything',
    file: `${ROOM}/lanes.ts`,
    find: "if (lane.underWay > 0) return 'silent';",
    replace: '',
    tests: LANES,
  },
  {
    name: 'lanes: a lane takes without end',
    file: `${ROOM}/lanes.ts`,
    find: "if (lane.known.size >= AHEAD_MAX) return 'full';",
    replace: '',
    tests: LANES,
  },
  {
    name: 'releaser: units are told to be back that the gate did not take',
    file: `${ROOM}/releaser.ts`,
    find: 'if (done.size > 0) await ledger.released([...done].map(({ orderId }) => orderId));',
    replace: 'await ledger.released(some.map(({ orderId }) => orderId));',
    tests: ORDER,
  },
  {
    name: 'releaser: units that could not be given back stay away',
    file: `${ROOM}/releaser.ts`,
    find: 'const some = left.filter(({ saleId }) => !this.#rests(saleId));',
    replace: 'const some = left.slice(0, 0);',
    tests: ORDER,
  },
  {
    name: 'releaser: the ledger is told before the gate has the units',
    file: `${ROOM}/releaser.ts`,
    find: 'await gate.release(saleId, { orderId, buyer });\n          done.add(one);',
    replace: 'done.add(one);\n          await gate.release(saleId, { orderId, buyer });',
    tests: ORDER,
  },
];
