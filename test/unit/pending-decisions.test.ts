import { describe, expect, it } from 'vitest';
import type { OrderRecord } from '../../src/model/order.ts';
import { PendingDecisions } from '../../src/orders/pending-decisions.ts';
import { settled } from '../contract/manual.ts';

const order = (id: string) => ({ id }) as OrderRecord;

describe('pending decisions', () => {
  it('give the decision to the caller that waits, and to all that ask for it meanwhile', async () => {
    const pending = new PendingDecisions();
    const first = pending.expect('1');
    const repeat = pending.of('1');
    pending.decided(order('1'));
    expect(await first).toEqual({ id: '1' });
    expect(await repeat).toEqual({ id: '1' });
    expect(pending.of('1'), 'decided: the ledger knows it').toBeNull();
  });

  it('hand on a failure', async () => {
    const pending = new PendingDecisions();
    const waiting = pending.expect('1');
    pending.failed('1', new Error('the disk is full'));
    await expect(waiting).rejects.toThrow('the disk is full');
    expect(pending.of('1')).toBeNull();
  });

  it('a failure that nobody waits for any more is not an unhandled rejection', async () => {
    const pending = new PendingDecisions();
    pending.expect('1');
    pending.failed('1', new Error('nobody listens'));
    await settled();
  });

  it('forget a refused order, and ignore what they do not expect', () => {
    const pending = new PendingDecisions();
    pending.expect('1');
    pending.forget('1');
    expect(pending.of('1')).toBeNull();
    pending.decided(order('1'));
    pending.failed('2', new Error('unknown'));
    expect(pending.of('2')).toBeNull();
  });
});
