import type { OrderMessage } from '../../../src/model/order.ts';

/**
 * Bytes of format 2: entries of orders for seats. All other entries stay number 1. Never edited: a change of what is written has
 * a number and a file of its own, and the version that makes it goes on reading these.
 */
const common = {
  ...{ saleId: '7', itemId: '12', itemCode: 'stalls', price: { amount: 68000, currency: 'CNY' } },
  ...{ payWithinSeconds: 900, epoch: 3, from: 'p1' },
};

export const SEAT_MESSAGES: OrderMessage[] = [
  {
    ...{ ...common, orderId: '201', buyer: 'alice', quantity: 2, slots: [1, 2], seats: [3, 4], key: null },
    fingerprint: 'stalls s3.4',
  },
  {
    ...{ ...common, orderId: '202', buyer: 'bob', quantity: 2, slots: [1, 2], seats: [6, 7], key: 'k1' },
    fingerprint: 'stalls x2 together',
  },
  {
    ...{ ...common, orderId: '203', buyer: 'ann', quantity: 2, slots: [1, 2], seats: [1, 2], key: null },
    fingerprint: 'stalls x2 together',
    placedBy: { auditId: '900', kind: 'admin', name: 'Eve', origin: '127.0.0.1' },
  },
];

const HEADER = ['2', '3\n900\np1', 'i2', '12\nstalls\n68000\nCNY'];

export const seats2 = {
  /** Rows of 8 and 2 seats, the last of them blocked and seat 5 sold. Of `items`, what an item without seats has not. */
  items: { 'C:stalls': '2', N: '3', 'g:2': '0 10 2 10 12 14', 'm:2': '5', 'w:2': '5', 'h:2': '7', 'q:2': '6' },
  holds: { alice: '201,2,q,1.2,3.4', bob: '202,2,q,1.2,6.7', ann: '203,2,q,1.2,1.2', zoe: '90,2,s,1,5' },
  /** Letters, longest free runs, free seats, and where the rows begin. */
  seats: 'FrrrrsrrFb\u001c\u001c\u001c\u001c\u0000\u0000\u0000\u0000\u0000\u0008\u0000\u0000\u000a',
  changes: ['12 r 3.4', '12 r 6.7', '12 r 1.2'],
  entries: [
    [...HEADER, 'o1', '2\n1.2\nstalls s3.4\n201\n3.4\nalice'],
    [
      ...HEADER,
      ...['k2', '2\n1.2\nstalls x2 together\n202 203\n6.7 1.2\nbob\nk1\nann\n'],
      ...['by', '[["203","900","admin","Eve","127.0.0.1"]]'],
    ],
  ],
  /** The first message alone, as it goes into retries, dead letters and parcels. */
  alone: ['2', '3\n900\np1', 'i1', '12\nstalls\n68000\nCNY', 'o1', '1\n1.2\nstalls s3.4\n201\n3.4\nalice'],
  /** At a broker it is a parcel of number 2, as ever: whoever cannot read entries of format 2 sees that from its fields. */
  parcel:
    '[2,"7",3,"1700000000000-1",["2","3\\n900\\np1","i1","12\\nstalls\\n68000\\nCNY","o1","1\\n1.2\\nstalls s3.4\\n201\\n3.4\\nalice"]]',
};
