import { describe, expect, it } from 'vitest';
import type { OrderRecord } from '../../src/model/order.ts';
import { Acks } from '../../src/orders/acks.ts';
import { settled } from '../contract/manual.ts';

const order = (id: string) => ({ id }) as OrderRecord;

describe('acks', () => {
  it('give the decision to the caller that waits, and to all that ask for it meanwhile', async () => {
    const acks = new Acks();
    const first = acks.expect('1');
    const repeat = acks.of('1');
    acks.decided(order('1'));
    expect(await first).toEqual({ id: '1' });
    expect(await repeat).toEqual({ id: '1' });
    expect(acks.of('1'), 'decided: the ledger knows it').toBeNull();
  });

  it('hand on a failure', async () => {
    const acks = new Acks();
    const waiting = acks.expect('1');
    acks.failed('1', new Error('the disk is full'));
    await expect(waiting).rejects.toThrow('the disk is full');
    expect(acks.of('1')).toBeNull();
  });

  it('a failure that nobody waits for any more is not an unhandled rejection', async () => {
    const acks = new Acks();
    acks.expect('1');
    acks.failed('1', new Error('nobody listens'));
    await settled();
  });

  it('forget a refused order, and ignore what they do not expect', () => {
    const acks = new Acks();
    acks.expect('1');
    acks.forget('1');
    expect(acks.of('1')).toBeNull();
    acks.decided(order('1'));
    acks.failed('2', new Error('unknown'));
    expect(acks.of('2')).toBeNull();
  });
});
