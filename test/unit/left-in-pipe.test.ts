import { beforeEach, describe, expect, it } from 'vitest';
import { RetryableError, TerminalError, unavailable } from '../../src/base/errors.ts';
import { LeftInPipe } from '../../src/ledger/left-in-pipe.ts';
import type { StoredOrder } from '../../src/ledger/port.ts';
import { Writer } from '../../src/ledger/writer.ts';
import type { OrderMessage, OrderRecord } from '../../src/model/order.ts';
import { manualRuntime } from '../contract/manual.ts';
import { orderMessage } from '../support/streams.ts';

const idsOf = (batch: readonly OrderMessage[]): string[] => batch.map(({ orderId }) => orderId);
const messages = (count: number): OrderMessage[] =>
  Array.from({ length: count }, (_, at) => orderMessage(String(at + 1)));

/** A ledger as far as this writer sees it. */
class StubLedger {
  readonly poison = new Set<string>();
  readonly batches: string[][] = [];
  readonly stored: string[] = [];
  out: RetryableError | null = null;
  /** Out, but only when this order comes. */
  outAt: string | null = null;
  probeFails: Error | null = null;
  probes = 0;

  async commitOrders(batch: readonly OrderMessage[]): Promise<StoredOrder[]> {
    this.batches.push(idsOf(batch));
    if (this.out) throw this.out;
    if (this.outAt !== null && idsOf(batch).includes(this.outAt)) throw unavailable('the connection broke');
    const bad = batch.find(({ orderId }) => this.poison.has(orderId));
    if (bad) throw new TerminalError('internal', `cannot store ${bad.orderId}`);
    this.stored.push(...idsOf(batch));
    return batch.map(({ orderId }) => ({ order: { id: orderId } as OrderRecord, inserted: true }));
  }

  async probe(): Promise<void> {
    this.probes++;
    if (this.probeFails) throw this.probeFails;
  }
}

describe('the writer behind a pipe that keeps its messages', () => {
  let ledger: StubLedger;
  let told: string[][];
  let committed: number[];
  let effectsFail: unknown;
  let logged: [string, string][];
  let undecided: LeftInPipe;
  let writer: Writer;

  beforeEach(() => {
    ledger = new StubLedger();
    told = [];
    committed = [];
    effectsFail = null;
    logged = [];
    const runtime = manualRuntime();
    const log = Object.create(runtime.log) as typeof runtime.log;
    log.error = ((_: unknown, text: string) => void logged.push(['error', text])) as typeof log.error;
    log.info = ((text: string) => void logged.push(['info', text])) as typeof log.info;
    undecided = new LeftInPipe(ledger, { ...runtime, log });
    writer = new Writer(
      ledger,
      { ...runtime, log },
      {
        async decided(stored, batch) {
          if (effectsFail) throw effectsFail;
          expect(stored.map(({ order }) => order.id)).toEqual(idsOf(batch));
          expect(ledger.stored.slice(-batch.length), 'first the commit, then the gate').toEqual(idsOf(batch));
          told.push(idsOf(batch));
        },
        committed: (size) => void committed.push(size),
      },
      undecided,
    );
  });

  /** To the end: stored, and told. */
  async function write(batch: readonly OrderMessage[]) {
    const { undeliverable, told: whole } = await writer.write(batch);
    await whole;
    return undeliverable;
  }

  it('resolves when the batch is stored: what follows is waited for apart', async () => {
    const following = Promise.withResolvers<void>();
    const effects = { decided: () => following.promise, committed: () => undefined };
    const slow = new Writer(ledger, manualRuntime(), effects, undecided);
    const { undeliverable, told: whole } = await slow.write(messages(2));
    expect(undeliverable).toEqual([]);
    expect(ledger.stored).toEqual(['1', '2']);
    let heard = false;
    void whole.then(() => (heard = true));
    await new Promise((resolve) => setImmediate(resolve));
    expect(heard).toBe(false);
    following.resolve();
    await whole;
  });

  it('commits a batch as one, then tells', async () => {
    expect(await write(messages(5))).toEqual([]);
    expect(ledger.batches).toEqual([['1', '2', '3', '4', '5']]);
    expect(told).toEqual([['1', '2', '3', '4', '5']]);
    expect(committed).toEqual([5]);
    expect(ledger.probes).toBe(0);
    expect(await write([])).toEqual([]);
  });

  it('finds poison by halves, keeps the order, and stores all others', async () => {
    ledger.poison.add('300').add('301').add('512');
    const undeliverable = await write(messages(512));
    expect(undeliverable.map(({ message, error }) => [message.orderId, error.message])).toEqual([
      ['300', 'cannot store 300'],
      ['301', 'cannot store 301'],
      ['512', 'cannot store 512'],
    ]);
    const others = idsOf(messages(512)).filter((id) => !ledger.poison.has(id));
    expect(ledger.stored).toEqual(others);
    expect(told.flat()).toEqual(others);
    expect(ledger.batches.length).toBeLessThan(3 * 2 * 9 + 1);
    expect(undecided.reason).toBeNull();
  });

  it('a batch of nothing but poison is nothing but undeliverable', async () => {
    for (const { orderId } of messages(4)) ledger.poison.add(orderId);
    expect((await write(messages(4))).length).toBe(4);
    expect(told).toEqual([]);
  });

  it('P3: a ledger that is out rejects the whole batch, says why, and logs it once', async () => {
    ledger.out = unavailable('no connection', new Error('ECONNREFUSED'));
    for (let tries = 0; tries < 5; tries++) await expect(write(messages(4))).rejects.toBe(ledger.out);
    expect(ledger.batches.length, 'not split').toBe(5);
    expect(undecided.reason).toBe('no connection');
    expect(told).toEqual([]);
    ledger.out = null;
    expect(await write(messages(4))).toEqual([]);
    expect(undecided.reason).toBeNull();
    expect(logged).toEqual([
      ['error', 'the ledger is out; orders wait in the pipe'],
      ['info', 'the ledger is back'],
    ]);
  });

  it('P3: one that goes out while poison is being found: all comes again, nothing is given up', async () => {
    ledger.poison.add('1');
    ledger.outAt = '7';
    await expect(write(messages(8))).rejects.toBeInstanceOf(RetryableError);
    ledger.outAt = null;
    expect((await write(messages(8))).map(({ message }) => message.orderId)).toEqual(['1']);
    expect(new Set(told.flat())).toEqual(new Set(['2', '3', '4', '5', '6', '7', '8']));
  });

  it('P3: a ledger that can store nothing at all is out, whatever its errors look like', async () => {
    for (const { orderId } of messages(4)) ledger.poison.add(orderId);
    ledger.probeFails = new Error('relation "orders" does not exist');
    await expect(write(messages(4))).rejects.toBeInstanceOf(RetryableError);
    expect(undecided.reason).toContain('does not exist');
    ledger.probeFails = null;
    expect((await write(messages(4))).length).toBe(4);
    expect(undecided.reason).toBeNull();
  });

  it.each([
    ['an error of the gate', unavailable('Redis is out')],
    ['a bug', new TypeError('undefined is not a function')],
    ['not even an error', 'odd'],
  ])('rejects as retryable when nobody could be told: %s', async (_, error) => {
    effectsFail = error;
    await expect(write(messages(2))).rejects.toBeInstanceOf(RetryableError);
    await expect(write(messages(2))).rejects.toBeInstanceOf(RetryableError);
    expect(undecided.reason, 'the ledger works').toBeNull();
    effectsFail = null;
    expect(await write(messages(2))).toEqual([]);
    expect(told).toEqual([['1', '2']]);
    expect(logged.map(([level]) => level)).toEqual(['error', 'info']);
  });
});
