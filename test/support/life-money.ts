import { expect } from 'vitest';
import type { Bank } from './life-bank.ts';
import type { Query, Rows } from './life-judge.ts';

/** When all is settled: the money that the ledger has is the money that the bank has, payment by payment, to the cent. */
export async function judgeMoney(query: Query, bank: Bank, text: 'TEXT' | 'CHAR' = 'TEXT'): Promise<void> {
  const attempts = await query(
    `SELECT CAST(p.id AS ${text}) AS id, p.provider, p.state, p.pays, p.amount, p.refunded, p.currency, o.status FROM payments p
     JOIN orders o ON o.id = p.order_id`,
  );
  const captured = attempts.filter(({ state, provider }) => state === 'captured' && provider === bank.name);
  const here = captured.map(({ id, amount, refunded, currency }) => ({
    ...{ id, amount: Number(amount), back: Number(refunded), currency },
  }));
  const atBank = [...bank.book.values()].filter(({ state }) => state === 'captured');
  const there = atBank.map(({ id, amount, back }) => ({ id, ...amount, back }));
  expect(here.sort(byId), 'P6: the money that the ledger has, and the bank').toEqual(there.sort(byId));
  for (const { id, captures, refunds, back, amount } of bank.book.values()) {
    expect(back, `P6: what is back of ${id}`).toBeLessThanOrEqual(amount.amount);
    expect(captures, `P6: captures of ${id}`).toBeLessThanOrEqual(1);
    expect(refunds, `P6: refunds of ${id}`).toBeLessThanOrEqual(captures);
  }
  for (const { id, status, pays, state } of attempts) {
    if (state === 'captured') expect([id, status, Number(pays)]).toEqual([id, 'paid', 1]);
  }
}

/** What is still to be done: orders whose end is open, payments that somebody must look after, units on their way. */
export async function unfinished(query: Query, text: 'TEXT' | 'CHAR' = 'TEXT'): Promise<Rows> {
  return [
    ...(await query(`SELECT CAST(id AS ${text}) AS id, status FROM orders WHERE status = 'reserved'`)),
    ...(await query(`SELECT CAST(id AS ${text}) AS id, state, error FROM payments WHERE next_at IS NOT NULL`)),
    ...(await query(`SELECT CAST(id AS ${text}) AS id, state, error FROM refunds WHERE state = 'asked'`)),
    ...(await query(`SELECT CAST(order_id AS ${text}) AS released FROM release_outbox WHERE done_at IS NULL`)),
  ];
}

function byId(a: { id?: unknown }, b: { id?: unknown }): number {
  return String(a.id).localeCompare(String(b.id));
}
