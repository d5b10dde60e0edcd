import { expect } from 'vitest';
import { idTimeMs } from '../../src/base/ids.ts';
import type { KeyScope, Ledger } from '../../src/ledger/port.ts';

/** Keys as they were stored up to schema 2, by path, and their scopes since then. */

export const FORMER_SALE = '500';
/** Placed with the key `k`, by ann or by an admin who acted for her: schema 2 did not record which. */
export const FORMER_ORDER = '1001';
export const FORMER_BUYER = 'ann';

interface FormerAnswer {
  caller: string;
  path: string;
  scopes: Pick<KeyScope, 'caller' | 'actingFor' | 'operation' | 'subject'>[];
}

const admin = (operation: string, subject: string, actingFor: string | null = null) => ({
  caller: 'admin:alice',
  actingFor,
  operation,
  subject,
});

export const FORMER_ANSWERS: FormerAnswer[] = [
  { caller: 'alice', path: 'POST /v1/sales', scopes: [admin('sale.create', '')] },
  { caller: 'alice', path: 'POST /v1/sales/500/pause', scopes: [admin('sale.pause', '500')] },
  { caller: 'alice', path: 'POST /v1/sales/500/resume', scopes: [admin('sale.resume', '500')] },
  { caller: 'alice', path: 'POST /v1/sales/500/close', scopes: [admin('sale.close', '500')] },
  { caller: 'alice', path: 'POST /v1/sales/500/items/a.b-c_1/stock', scopes: [admin('sale.stock', '500/a.b-c_1')] },
  {
    caller: 'admin:alice',
    path: `POST /v1/orders/${FORMER_ORDER}/cancel`,
    // Alice may have acted for the order's buyer or for nobody, so both scopes find it.
    scopes: [admin('order.cancel', FORMER_ORDER), admin('order.cancel', FORMER_ORDER, FORMER_BUYER)],
  },
  {
    caller: `buyer:${FORMER_BUYER}`,
    path: `POST /v1/orders/${FORMER_ORDER}/pay`,
    scopes: [{ caller: `buyer:${FORMER_BUYER}`, actingFor: null, operation: 'order.pay', subject: FORMER_ORDER }],
  },
  { caller: 'admin:alice', path: 'POST /v1/ops/webhooks', scopes: [admin('webhook.create', '')] },
  {
    caller: 'admin:alice',
    path: 'POST /v1/ops/webhooks/deliveries/77/redeliver',
    scopes: [admin('webhook.redeliver', '77')],
  },
];

/** Scopes that must not find these keys. */
export const STRANGERS: Pick<KeyScope, 'caller' | 'actingFor' | 'operation' | 'subject'>[] = [
  admin('order.cancel', FORMER_ORDER, 'eve'),
  { ...admin('order.cancel', FORMER_ORDER), caller: 'admin:bob' },
  { ...admin('order.pay', FORMER_ORDER), caller: 'buyer:eve' },
  admin('sale.pause', '50'),
];

/** The statements that insert them; `answers`: the table in which that ledger stored them. */
export function formerRows(answers: 'answers' | 'keys', nowMs: number, batch: string): string[] {
  const quoted = (text: string): string => `'${text}'`;
  return [
    `INSERT INTO sales (id, name, opens_at, closes_at, per_buyer, per_buyer_max, pay_within, created_at, updated_at)
     VALUES (${FORMER_SALE}, 'S', 0, 4000000000000, 3, 3, 900, 0, 0)`,
    `INSERT INTO items (id, sale_id, position, code, name, amount, currency, kind, total, reserved)
     VALUES (501, ${FORMER_SALE}, 0, 'voucher', 'V', 100, 'CNY', 'counted', 10, 1)`,
    `INSERT INTO orders (id, sale_id, item_id, buyer, quantity, slots, amount, currency, status, epoch, idem_key, fingerprint,
       created_at, updated_at, expires_at${batch === '' ? '' : ', batch'})
     VALUES (${FORMER_ORDER}, ${FORMER_SALE}, 501, 'ann', 1, '1', 100, 'CNY', 'reserved', 1, 'k', 'voucher x1', ${nowMs}, ${nowMs},
       ${nowMs + 900_000}${batch})`,
    ...FORMER_ANSWERS.map(
      ({ caller, path }) =>
        `INSERT INTO ${answers} (caller, path, "key", fingerprint, answer, created_at)
         VALUES (${[caller, path, 'k', 'f'].map(quoted).join(', ')}, '${path}', ${nowMs})`,
    ),
  ];
}

/** Checks what a migrated ledger says about them. */
export async function expectFormerKeys(ledger: Ledger): Promise<void> {
  for (const { path, scopes } of FORMER_ANSWERS) {
    for (const scope of scopes) {
      const bound = await ledger.findKey({ ...scope, key: 'k' });
      expect(bound, JSON.stringify(scope)).toEqual({ fingerprint: 'f', answer: path });
    }
  }
  for (const stranger of STRANGERS) {
    expect(await ledger.findKey({ ...stranger, key: 'k' }), JSON.stringify(stranger)).toBeNull();
  }
  const order = { saleId: FORMER_SALE, buyer: FORMER_BUYER, key: 'k' };
  expect(await ledger.findOrderKey(order)).toEqual({ fingerprint: 'voucher x1', orderId: FORMER_ORDER });
  expect(await ledger.findOrderKey({ ...order, buyer: 'eve' })).toBeNull();
  // Covers orders that were admitted just before by a clock a little ahead and are still in the pipe, but not those of tomorrow.
  const upToMs = idTimeMs(ledger.unscopedUpTo!);
  expect(upToMs).toBeGreaterThan(Date.now());
  expect(upToMs).toBeLessThan(Date.now() + 65_000);
}
