import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { expect } from 'vitest';
import { sign } from '../../src/base/signature.ts';
import { LEDGER_FILE } from '../../src/ledger/drivers/sqlite/folder.ts';
import type { ProviderNews } from '../../src/payments/port.ts';
import type { Item, Order } from '../../src/views/present.ts';
import { countFaults, saleNow } from './crowd-judge.ts';
import { until } from './fault-wait.ts';
import { type Answer, type CallOptions, createSale, type SaleInput, type TestServer } from './server.ts';

/** Short forms of the calls that move an order. */

export type Server = Pick<TestServer, 'call'>;

export const WEBHOOK_SECRET = 'test-webhook-secret-of-at-least-32-bytes';
export const PAYMENTS = { PAYMENTS_SANDBOX: 'on', PAYMENT_WEBHOOK_SECRET: WEBHOOK_SECRET };
export const PRICE = { amount: 8000, currency: 'CNY' };

/** A sale of vouchers, at PRICE each. */
export function openSale(server: Server, { stock = 10, ...over }: Omit<SaleInput, 'items'> = {}): Promise<string> {
  const items = [{ code: 'voucher', name: '100 off', price: PRICE, stock }];
  return createSale(server, { payWithin: 900, ...over, items });
}

export function place(server: Server, saleId: string, buyer: string, more: CallOptions = {}): Promise<Answer> {
  return server.call('POST', `/v1/sales/${saleId}/orders`, { buyer, body: { item: 'voucher' }, ...more });
}

export async function order(server: Server, saleId: string, buyer: string, quantity = 1): Promise<Order> {
  const placed = await place(server, saleId, buyer, { body: { item: 'voucher', quantity } });
  if (placed.status !== 201) throw new Error(`no order: ${placed.status} ${JSON.stringify(placed.body)}`);
  return placed.body;
}

type Of = Pick<Order, 'id' | 'buyer'>;

export function pay(server: Server, { id, buyer }: Of, token?: string, more: CallOptions & { method?: string } = {}) {
  const { method = 'sandbox', ...rest } = more;
  const body = { method, ...(token !== undefined && { token }) };
  return server.call('POST', `/v1/orders/${id}/pay`, { buyer, body, ...rest });
}

export function confirm(server: Server, { id }: Of, reference: string, more: CallOptions & { amount?: object } = {}) {
  const { amount = PRICE, ...rest } = more;
  return server.call('POST', `/v1/orders/${id}/confirm`, { admin: true, body: { reference, amount }, ...rest });
}

export function cancel(server: Server, { id, buyer }: Of, more: CallOptions = {}): Promise<Answer> {
  return server.call('POST', `/v1/orders/${id}/cancel`, { buyer, ...more });
}

export function refund(server: Server, { id }: Of, more: CallOptions = {}): Promise<Answer> {
  return server.call('POST', `/v1/orders/${id}/refund`, { admin: true, ...more });
}

/** The order as it is shown to an admin. */
export async function now(server: Server, { id }: Pick<Order, 'id'>): Promise<Order> {
  const { status, body } = await server.call('GET', `/v1/orders/${id}`, { admin: true });
  if (status !== 200) throw new Error(`no order: ${status} ${JSON.stringify(body)}`);
  return body;
}

export function untilStatus(server: Server, one: Pick<Order, 'id'>, status: Order['status'], withinMs = 5000) {
  return until(`order ${one.id} is ${status}`, withinMs, async () => {
    const order = await now(server, one);
    return order.status === status && order;
  });
}

/** The counts of the sale's only item; they add up at every look. */
export async function counts(server: Server, saleId: string): Promise<Item> {
  const sale = await saleNow(server, saleId);
  expect(countFaults(sale)).toEqual([]);
  return sale.items[0]!;
}

export interface AuditRow {
  id: string;
  at: string;
  actor: string;
  origin: string | null;
  action: string;
  subject: string;
  // biome-ignore lint/suspicious/noExplicitAny: a test reads whatever came
  detail: any;
}

/** What the audit says of an order, oldest first. */
export async function auditOf(server: Server, { id }: Pick<Order, 'id'>): Promise<AuditRow[]> {
  const { status, body } = await server.call('GET', `/v1/ops/audit?subject=order:${id}&limit=200`, { admin: true });
  if (status !== 200) throw new Error(`no audit: ${status} ${JSON.stringify(body)}`);
  return (body.data as AuditRow[]).reverse();
}

/** Ids of the attempts to pay it, oldest first, as the ledger in that folder has them; the sandbox calls each `sandbox-<id>`. */
export function attemptsOf({ data }: { data: string }, { id }: Pick<Order, 'id'>): string[] {
  const db = new DatabaseSync(join(data, LEDGER_FILE), { readOnly: true });
  try {
    const found = db.prepare('SELECT CAST(id AS TEXT) AS id FROM payments WHERE order_id = ? ORDER BY payments.id');
    return found.all(BigInt(id)).map((row) => row.id as string);
  } finally {
    db.close();
  }
}

export interface TellOptions {
  provider?: string;
  secret?: string;
  atMs?: number;
  /** Instead of the right one; null: none. */
  signature?: string | null;
  raw?: string;
}

export type News = Omit<ProviderNews, 'provider' | 'id'> & { id?: string };

/** What a provider tells, signed as it should be unless said otherwise. */
export function tell(server: Server, news: News, options: TellOptions = {}): Promise<Answer> {
  const { provider = 'sandbox', secret = WEBHOOK_SECRET, atMs = Date.now() } = options;
  const raw = options.raw ?? JSON.stringify({ id: `evt-${news.reference}-${news.type}`, ...news });
  const signature = options.signature === undefined ? sign(secret, raw, atMs) : options.signature;
  const headers = signature === null ? {} : { 'doorbuster-signature': signature };
  return server.call('POST', `/v1/webhooks/payments/${provider}`, { raw, headers });
}
