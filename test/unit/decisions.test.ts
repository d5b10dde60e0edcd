import { beforeEach, describe, expect, it } from 'vitest';
import type { StoredOrder } from '../../src/ledger/port.ts';
import { firstRecord, type OrderMessage, type OrderStatus } from '../../src/model/order.ts';
import type { RejectReason } from '../../src/model/outcome.ts';
import { Decisions, type DecisionsDependencies } from '../../src/orders/decisions.ts';
import { PendingDecisions } from '../../src/orders/pending-decisions.ts';
import { manualRuntime, settled, T0 } from '../contract/manual.ts';
import { orderMessage } from '../support/streams.ts';

const HERE = 'here';

/** What is stored for a message. */
function stored(message: OrderMessage, status: OrderStatus, reason: RejectReason | null = null): StoredOrder {
  return { order: { ...firstRecord(message, reason, T0), status }, inserted: true };
}

describe('what follows from the decisions of the ledger', () => {
  let happened: string[];
  let gateFails: Error | null;
  let pending: PendingDecisions;

  beforeEach(() => {
    happened = [];
    gateFails = null;
    pending = new PendingDecisions();
  });

  function decisions(process: string | undefined): Decisions {
    const call =
      (name: string) =>
      async (saleId: string, what: unknown): Promise<void> => {
        const ids = Array.isArray(what) ? what.map(({ orderId }) => orderId).join(' ') : undefined;
        happened.push(`${name} ${saleId} ${ids ?? (what as { orderId?: string }).orderId ?? what}`);
        if (gateFails) throw gateFails;
      };
    const gate = { settle: call('settle'), release: call('release'), shut: call('shut') };
    return new Decisions({
      runtime: manualRuntime(),
      gate: gate as unknown as DecisionsDependencies['gate'],
      pending,
      process,
      tell: (other, orders) => happened.push(`tell ${other} ${orders.map(({ id }) => id).join(' ')}`),
      rebuild: (saleId, epoch) => happened.push(`rebuild ${saleId} above ${epoch}`),
      touched: (saleId) => happened.push(`touched ${saleId}`),
      announce: (event, { id }) => happened.push(`${event} ${id}`),
      backstop: (reason) => happened.push(`backstop ${reason}`),
    });
  }

  const wait = (orderId: string): void =>
    void pending.expect(orderId).then((order) => happened.push(`answered ${orderId}: ${order.status}`));

  it('P3: in one process the gate has settled before anybody is answered, one call for each sale', async () => {
    const messages = [orderMessage('1'), orderMessage('2', { saleId: '9' }), orderMessage('3')];
    for (const { orderId } of messages) wait(orderId);
    await decisions(undefined).follow(
      messages.map((message) => stored(message, 'reserved')),
      messages,
    );
    await settled();
    expect(happened.filter((what) => !/order\.|touched/.test(what))).toEqual([
      'settle 1 1 3',
      'settle 9 2',
      'answered 1: reserved',
      'answered 2: reserved',
      'answered 3: reserved',
    ]);
    expect(happened.filter((what) => what.startsWith('touched'))).toEqual(['touched 1', 'touched 9']);
  });

  it('tells the process that admitted an order, once the gate knows; an order that nobody waits for, nobody', async () => {
    const messages = [
      orderMessage('1', { from: HERE }),
      orderMessage('2', { from: 'there' }),
      orderMessage('3', { from: 'there' }),
      orderMessage('4'),
    ];
    wait('1');
    await decisions(HERE).follow(
      messages.map((message) => ({ ...stored(message, 'reserved'), inserted: false })),
      messages,
    );
    expect(happened).toEqual(['settle 1 1 2 3 4', 'answered 1: reserved', 'tell there 2 3', 'touched 1']);
  });

  it('P4: an order that has ended holds nothing: its hold is released and not settled, and it is not announced', async () => {
    const messages = [orderMessage('1'), orderMessage('2')];
    const both = [stored(messages[0]!, 'expired'), stored(messages[1]!, 'paid')];
    await decisions(undefined).follow(both, messages);
    expect(happened).toEqual(['order.reserved 2', 'settle 1 2', 'release 1 1', 'touched 1', 'touched 1']);
  });

  it('P1: what a backstop refused is not given back: its gate is shut up to that epoch, and built above it', async () => {
    const messages = [
      orderMessage('1', { epoch: 3 }),
      orderMessage('2', { epoch: 4 }),
      orderMessage('3', { epoch: 4 }),
    ];
    const [sold, late, kept] = messages as [OrderMessage, OrderMessage, OrderMessage];
    const all = [stored(sold, 'rejected', 'sold_out'), stored(late, 'rejected', 'sold_out'), stored(kept, 'reserved')];
    await decisions(undefined).follow(all, messages);
    expect(happened.filter((what) => !what.startsWith('order.'))).toEqual([
      'backstop sold_out',
      'backstop sold_out',
      'settle 1 3',
      'shut 1 4',
      'rebuild 1 above 4',
      'touched 1',
    ]);
    expect(happened).toContain('order.rejected 1');
  });

  it('P3: a gate that cannot be told fails the batch, and nothing is announced twice when it comes again', async () => {
    const messages = [orderMessage('1', { from: 'there' })];
    const [first] = messages.map((message) => stored(message, 'reserved'));
    gateFails = new Error('Redis is out');
    const follows = decisions(HERE);
    await expect(follows.follow([first!], messages)).rejects.toBe(gateFails);
    expect(happened).toEqual(['order.reserved 1', 'settle 1 1']);
    gateFails = null;
    happened.length = 0;
    await follows.follow([{ ...first!, inserted: false }], messages);
    expect(happened).toEqual(['settle 1 1', 'tell there 1', 'touched 1']);
  });
});
