import { describe, expect, it } from 'vitest';
import { systemRuntime } from '../../src/base/runtime.ts';
import { MemoryPipe } from '../../src/pipe/memory.ts';
import { ORDERS } from '../../src/pipe/orders.ts';
import { orderMessage, type TestKind } from '../support/streams.ts';
import { settled } from './manual.ts';
import { type PipeUnderTest, pipeContract } from './pipe.ts';

async function memoryPipe<M>({ channels }: TestKind<M>): Promise<PipeUnderTest<M>> {
  const pipe = new MemoryPipe(channels, systemRuntime());
  const push = async (messages: M[]): Promise<void> => {
    for (const message of messages) pipe.push(message);
  };
  return { pipe, letters: null, push, pushEach: push, batchMax: 512, end: () => pipe.stop() };
}

// The writer of an embedded shop ends what its ledger cannot take: nothing is undeliverable here.
pipeContract('memory', memoryPipe, { keepsLetters: false });

describe('the pipe in memory', () => {
  const turns = async (): Promise<void> => {
    for (let turn = 0; turn < 4; turn++) await settled();
  };

  it('is drained when nothing is in it: at once if it is empty, else after the last batch is handled', async () => {
    const pipe = new MemoryPipe(ORDERS, systemRuntime());
    await pipe.drained();
    const open: (() => void)[] = [];
    pipe.consume(() => new Promise((resolve) => open.push(() => resolve())));
    pipe.push(orderMessage('1'));
    await turns();
    pipe.push(orderMessage('2', { saleId: '9' }));
    expect(pipe.depth).toBe(2);
    let drained = 0;
    for (let waiter = 0; waiter < 2; waiter++) void pipe.drained().then(() => drained++);
    open.shift()!();
    await turns();
    expect(drained, 'the second batch is being handled').toBe(0);
    expect(pipe.depth).toBe(1);
    open.shift()!();
    await turns();
    expect(drained).toBe(2);
    expect(pipe.depth).toBe(0);
    await pipe.drained();
  });

  it('has one queue: what arrives in one turn shares a batch, whatever its channel', async () => {
    const pipe = new MemoryPipe(ORDERS, systemRuntime());
    const batches: string[][] = [];
    pipe.consume(async (batch) => void batches.push(batch.map(({ saleId }) => saleId)));
    for (const saleId of ['1', '2', '1']) pipe.push(orderMessage('1', { saleId }));
    await pipe.drained();
    expect(batches).toEqual([['1', '2', '1']]);
  });

  it('P10: is full when as many wait as its kind allows, and has room again when they have left', async () => {
    const pipe = new MemoryPipe({ ...ORDERS, bound: 2 }, systemRuntime());
    pipe.push(orderMessage('1'));
    expect(pipe.isFull).toBe(false);
    pipe.push(orderMessage('2', { saleId: '9' }));
    expect(pipe.isFull).toBe(true);
    pipe.consume(async () => undefined);
    await pipe.drained();
    expect(pipe.isFull).toBe(false);
  });

  it('a waiter that gave up is not in the way of others', async () => {
    const pipe = new MemoryPipe(ORDERS, systemRuntime());
    pipe.push(orderMessage('1'));
    const patient = pipe.caughtUp('sale:1');
    expect(await pipe.caughtUp('sale:1', 5)).toBe(false);
    const another = pipe.caughtUp('sale:1');
    pipe.consume(async () => undefined);
    expect(await Promise.all([patient, another])).toEqual([true, true]);
  });
});
