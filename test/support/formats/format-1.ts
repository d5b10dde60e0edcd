import type { OrderMessage } from '../../../src/model/order.ts';

/**
 * Bytes of format 1, as commit 7a27af5 writes them. Never edited: a change of what is written has a
 * number and a file of its own, and the version that makes it goes on reading these.
 */
const common = {
  ...{ saleId: '7', itemId: '11', itemCode: 'voucher', price: { amount: 8000, currency: 'CNY' } },
  ...{ payWithinSeconds: 900, epoch: 3, from: 'p1' },
};

export const MESSAGES: OrderMessage[] = [
  { ...common, orderId: '101', buyer: 'alice', quantity: 1, slots: [1], key: null, fingerprint: 'voucher x1' },
  { ...common, orderId: '102', buyer: 'bob', quantity: 2, slots: [1, 2], key: 'k1', fingerprint: 'voucher x2' },
  {
    ...{ ...common, orderId: '103', buyer: 'ann', quantity: 1, slots: [2], key: null, fingerprint: 'voucher x1' },
    placedBy: { auditId: '900', kind: 'admin', name: 'Eve', origin: '127.0.0.1' },
  },
];

const HEADER = ['', '3\n900\np1', 'i1', '11\nvoucher\n8000\nCNY'];
const ALONE = [...HEADER, 'o1', '1\n1\nvoucher x1\n101\nalice'];

export const format1 = {
  /** Of `P:{7:0}:gate`, without what is the server's own. */
  gate: {
    ...{ epoch: '3', version: '1', opens: '1000', closes: '9000000000000', paused: '0', closed: '0' },
    ...{ perBuyer: '2', payWithin: '900' },
  },
  items: {
    ...{ n: '1', Q: '3', 'c:voucher': '1', 's:1': '11 8000 CNY voucher' },
    ...{ 't:1': '10', 'b:1': '1', 'r:1': '2', 'h:1': '5', 'q:1': '4', 'o:1': '0' },
  },
  holds: { alice: '101', bob: '102,1,q,1.2', ann: '90,1,s,1;103,1,q,2' },
  /** Those that were bound by an admission have its time in the second place. */
  keys: { 'ann\nk0': '90 5000 voucher x1', 'bob\nk1': '102 <ms> voucher x2' },
  entries: [
    ALONE,
    [
      ...HEADER,
      ...['k1', '1\n1.2\nvoucher x2\n102\nbob\nk1'],
      ...['k1', '1\n2\nvoucher x1\n103\nann\n'],
      ...['by', '[["103","900","admin","Eve","127.0.0.1"]]'],
    ],
  ],
  wake: '7 3',
  retry: JSON.stringify(['2', '3', ALONE]),
  letter: JSON.stringify({ diedAtMs: 1_700_000_000_000, attempts: 5, error: 'too long', epoch: '3', fields: ALONE }),
  parcel: JSON.stringify([2, '7', 3, '1700000000000-1', ALONE]),
  probe: '[2,"7",3,"1700000000000-1",null]',
};
