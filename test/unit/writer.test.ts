import { afterEach, beforeEach, describe, expect, it, onTestFinished } from 'vitest';
import { BusyError, RetryableError, TerminalError, unavailable } from '../../src/base/errors.ts';
import { MemoryGate } from '../../src/gate/memory.ts';
import { Maintenance } from '../../src/ledger/maintenance.ts';
import type { Ledger, StoredOrder } from '../../src/ledger/port.ts';
import { Unresolved, type UnresolvedEffects } from '../../src/ledger/unresolved.ts';
import { Writer } from '../../src/ledger/writer.ts';
import { actor } from '../../src/model/actor.ts';
import { type OrderMessage, type OrderRecord, orderFingerprint } from '../../src/model/order.ts';
import type { RejectReason } from '../../src/model/outcome.ts';
import { type ManualRuntime, manualRuntime, settled, T0 } from '../contract/manual.ts';
import { newSale } from '../support/new-sale.ts';
import { sqliteUnderTest } from '../support/sqlite-ledger.ts';

const PROBE_MS = 500;

function message(orderId: string, over: Partial<OrderMessage> = {}): OrderMessage {
  return {
    orderId,
    saleId: '5',
    itemId: '6',
    itemCode: 'v',
    buyer: `b${orderId}`,
    quantity: 1,
    slots: [1],
    price: { amount: 1, currency: 'CNY' },
    payWithinSeconds: 60,
    epoch: 1,
    key: null,
    fingerprint: orderFingerprint('v', 1),
    ...over,
  };
}

function record({ orderId, saleId, itemId, itemCode, buyer }: OrderMessage, reason: RejectReason | null): OrderRecord {
  return {
    id: orderId,
    saleId,
    itemId,
    itemCode,
    buyer,
    quantity: 1,
    amount: { amount: 1, currency: 'CNY' },
    status: reason === null ? 'reserved' : 'rejected',
    reason,
    createdAtMs: T0,
    updatedAtMs: T0,
    expiresAtMs: null,
    version: 1,
    revives: null,
  };
}

/** A ledger as far as the writer sees it: it can be out, refuse, store and lose the answer, and choke on an order. */
class StubLedger {
  readonly rows = new Map<string, OrderRecord>();
  readonly batches: string[][] = [];
  readonly asked: string[][] = [];
  readonly rejects = new Map<string, RejectReason>();
  readonly poison = new Set<string>();
  out: RetryableError | null = null;
  /** The disk took it, and then the answer was lost. */
  storesBeforeFailing = false;
  probes = 0;
  backlog = 0;
  slices: number[] = [];
  maintenanceError: Error | null = null;

  async commitOrders(batch: readonly OrderMessage[]): Promise<StoredOrder[]> {
    this.batches.push(batch.map(({ orderId }) => orderId));
    if (batch.some(({ orderId }) => this.poison.has(orderId))) throw new TerminalError('bad', 'poison');
    if (this.out === null || this.storesBeforeFailing) {
      for (const one of batch) this.rows.set(one.orderId, record(one, this.rejects.get(one.orderId) ?? null));
    }
    if (this.out !== null) throw this.out;
    return batch.map(({ orderId }) => ({ order: this.rows.get(orderId)!, inserted: true }));
  }

  async storedAtRest(batch: readonly OrderMessage[]): Promise<Map<string, OrderRecord>> {
    const orderIds = batch.map(({ orderId }) => orderId);
    this.asked.push([...orderIds]);
    return new Map(orderIds.flatMap((id) => (this.rows.has(id) ? [[id, this.rows.get(id)!] as const] : [])));
  }

  async probe(): Promise<void> {
    this.probes++;
    if (this.out !== null) throw this.out;
  }

  async maintain(budgetMs: number): Promise<boolean> {
    if (this.maintenanceError) throw this.maintenanceError;
    this.slices.push(budgetMs);
    this.backlog = Math.max(this.backlog - 100_000, 0);
    return this.backlog > 0;
  }
}

describe('the writer', () => {
  let runtime: ManualRuntime;
  let ledger: StubLedger;
  let writer: Writer;
  let unresolved: Unresolved;
  let maintenance: Maintenance;
  let heard: string[];

  function writeOn(on: unknown): void {
    const effects: UnresolvedEffects = {
      async decided(stored) {
        for (const { order, inserted } of stored) {
          const what = order.status === 'rejected' ? `rejected ${order.id}: ${order.reason}` : `stored ${order.id}`;
          heard.push(inserted ? what : `${what} again`);
        }
      },
      async withdrawn({ orderId }) {
        heard.push(`withdrawn ${orderId}`);
      },
      failed: ({ orderId }, error) => heard.push(`failed ${orderId}: ${error.message}`),
    };
    unresolved = new Unresolved(on as Ledger, runtime, effects);
    const committed = (orders: number): void => void heard.push(`committed ${orders}`);
    writer = new Writer(on as Ledger, runtime, { decided: effects.decided, committed }, unresolved);
    maintenance = new Maintenance(on as Ledger, runtime, {
      isOut: () => unresolved.reason !== null,
      failed: (error) => unresolved.reportFailure(error),
    });
  }

  function close(): void {
    unresolved.close();
    maintenance.close();
  }

  beforeEach(() => {
    runtime = manualRuntime();
    ledger = new StubLedger();
    heard = [];
    writeOn(ledger);
  });

  afterEach(() => close());

  async function write(...ids: string[]): Promise<void> {
    const { told, undeliverable } = await writer.write(ids.map((id) => message(id)));
    await told;
    expect(undeliverable, 'nothing is left to the pipe').toEqual([]);
    await maintenance.committed(ids.length);
  }

  describe('while the ledger works', () => {
    it('commits a batch in one transaction and then tells of each order, in order', async () => {
      ledger.rejects.set('2', 'sold_out');
      await write('1', '2', '3');
      expect(ledger.batches).toEqual([['1', '2', '3']]);
      expect(heard).toEqual(['committed 3', 'stored 1', 'rejected 2: sold_out', 'stored 3']);
      expect(unresolved.reason).toBeNull();
    });

    it('says of a repeat that it was stored before', async () => {
      close();
      const repeat = { order: record(message('1'), null), inserted: false };
      writeOn({ commitOrders: async () => [repeat], backlog: 0 });
      await write('1');
      expect(heard).toEqual(['committed 1', 'stored 1 again']);
    });

    it('P3: isolates an order that the ledger cannot take; the others of its batch are stored', async () => {
      ledger.poison.add('2');
      await write('1', '2', '3');
      expect(heard).toEqual(['committed 1', 'stored 1', 'withdrawn 2', 'failed 2: poison', 'committed 1', 'stored 3']);
      expect(unresolved.reason, 'the ledger itself is well').toBeNull();
      expect(unresolved.size).toBe(0);
    });
  });

  describe('when a commit fails because the ledger is out', () => {
    beforeEach(() => {
      ledger.out = unavailable('the disk is full');
    });

    it('tells who waits at once, frees nothing, and says why it is out', async () => {
      await write('1', '2');
      expect(heard).toEqual(['failed 1: the disk is full', 'failed 2: the disk is full']);
      expect([unresolved.reason, unresolved.size]).toEqual(['the disk is full', 2]);
    });

    it('does not try to commit what comes while it is out', async () => {
      await write('1');
      await write('2');
      expect(ledger.batches).toEqual([['1']]);
      expect(heard).toEqual(['failed 1: the disk is full', 'failed 2: the disk is full']);
      expect(unresolved.size).toBe(2);
    });

    it('asks every half second whether it is back, and keeps the newest reason', async () => {
      await write('1');
      await runtime.timers.advance(PROBE_MS - 1);
      expect(ledger.probes).toBe(0);
      await runtime.timers.advance(1);
      expect(ledger.probes).toBe(1);
      ledger.out = unavailable('the data folder is read-only');
      await runtime.timers.advance(PROBE_MS * 3);
      expect(ledger.probes).toBe(4);
      expect(unresolved.reason).toBe('the data folder is read-only');
      expect(heard, 'nothing is freed meanwhile').toEqual(['failed 1: the disk is full']);
    });

    it('P3 P4: when it is back, what is not stored is withdrawn, once', async () => {
      await write('1', '2');
      await write('3');
      heard.length = 0;
      ledger.out = null;
      await runtime.timers.advance(PROBE_MS);
      expect(heard).toEqual(['withdrawn 1', 'withdrawn 2', 'withdrawn 3']);
      expect([unresolved.reason, unresolved.size]).toEqual([null, 0]);
      await runtime.timers.advance(PROBE_MS * 4);
      expect(heard).toHaveLength(3);
      expect(ledger.probes, 'nobody asks a ledger that works').toBe(1);
    });

    it('P3: what had reached the disk after all is settled and not withdrawn', async () => {
      ledger.storesBeforeFailing = true;
      ledger.rejects.set('2', 'limit_reached');
      await write('1', '2');
      heard.length = 0;
      ledger.out = null;
      await runtime.timers.advance(PROBE_MS);
      expect(heard).toEqual(['stored 1', 'rejected 2: limit_reached']);
      expect(ledger.asked).toEqual([['1', '2']]);
    });

    it('P4: one that has ended by then is told as it is, is not new, and gives nothing back here', async () => {
      ledger.storesBeforeFailing = true;
      await write('1', '2');
      ledger.rows.set('1', { ...ledger.rows.get('1')!, status: 'expired', version: 2 });
      ledger.rows.set('2', { ...ledger.rows.get('2')!, status: 'paid', version: 2 });
      heard.length = 0;
      ledger.out = null;
      await runtime.timers.advance(PROBE_MS);
      expect(heard).toEqual(['stored 1 again', 'stored 2']);
    });

    it('P10: asks about a few hundred at a time, however many are open: a database has room for so many locks', async () => {
      const ids = Array.from({ length: 1100 }, (_, n) => String(1000 + n));
      await write(...ids);
      ledger.out = null;
      await runtime.timers.advance(PROBE_MS);
      await settled();
      expect(ledger.asked.map(({ length }) => length)).toEqual([500, 500, 100]);
      expect(ledger.asked.flat()).toEqual(ids);
      expect([unresolved.reason, unresolved.size]).toEqual([null, 0]);
    });

    it('P3: frees nothing as long as it cannot ask what is stored', async () => {
      await write('1');
      heard.length = 0;
      const asking = ledger.storedAtRest.bind(ledger);
      ledger.storedAtRest = () => Promise.reject(unavailable('cannot read'));
      ledger.out = null;
      await runtime.timers.advance(PROBE_MS);
      expect(heard).toEqual([]);
      expect([unresolved.reason, unresolved.size]).toEqual(['cannot read', 1]);
      ledger.storedAtRest = asking;
      await runtime.timers.advance(PROBE_MS);
      expect(heard).toEqual(['withdrawn 1']);
      expect(unresolved.reason).toBeNull();
    });

    it('works again afterwards, and goes out again', async () => {
      await write('1');
      ledger.out = null;
      await runtime.timers.advance(PROBE_MS);
      heard.length = 0;
      await write('2');
      ledger.out = unavailable('again');
      await write('3');
      expect(heard).toEqual(['committed 1', 'stored 2', 'failed 3: again']);
      ledger.out = null;
      await runtime.timers.advance(PROBE_MS);
      expect(heard.at(-1)).toBe('withdrawn 3');
    });

    it('a probe that fails in an unknown way is tried again', async () => {
      await write('1');
      const probing = ledger.probe.bind(ledger);
      ledger.probe = () => Promise.reject(new Error('a bug'));
      await runtime.timers.advance(PROBE_MS);
      expect(unresolved.reason).toBe('the disk is full');
      ledger.probe = probing;
      ledger.out = null;
      await runtime.timers.advance(PROBE_MS);
      expect(unresolved.reason).toBeNull();
    });

    it('P3: goes out in the middle of isolating: what was stored is told, the rest is unresolved', async () => {
      ledger.out = null;
      ledger.poison.add('2');
      const commit = ledger.commitOrders.bind(ledger);
      ledger.commitOrders = async (batch) => {
        if (batch[0]!.orderId === '3') ledger.out = unavailable('now it is full');
        return commit(batch);
      };
      await write('1', '2', '3', '4');
      expect(heard).toEqual([
        'committed 1',
        'stored 1',
        'withdrawn 2',
        'failed 2: poison',
        'failed 3: now it is full',
        'failed 4: now it is full',
      ]);
      expect(unresolved.size).toBe(2);
    });
  });

  describe('when commits take time', () => {
    it('P3: an order whose commit fails while the probe is asking is asked about before it is withdrawn', async () => {
      const commit = Promise.withResolvers<StoredOrder[]>();
      ledger.commitOrders = () => commit.promise;
      const writing = write('1');
      // Something else found the ledger out meanwhile: an id block, an administrative change.
      unresolved.reportFailure(unavailable('the connection broke'));
      const answer = Promise.withResolvers<void>();
      const asking = ledger.storedAtRest.bind(ledger);
      ledger.storedAtRest = async (ids) => {
        const found = await asking(ids);
        await answer.promise;
        return found;
      };
      await runtime.timers.advance(PROBE_MS);
      // The commit reached the disk; its answer was lost.
      ledger.rows.set('1', record(message('1'), null));
      commit.reject(unavailable('the connection broke'));
      await writing;
      answer.resolve();
      await settled();
      await runtime.timers.advance(PROBE_MS * 4);
      expect(heard.filter((what) => !what.startsWith('failed'))).toEqual(['stored 1']);
      expect([unresolved.reason, unresolved.size]).toEqual([null, 0]);
    });

    // The instants between "nothing is unresolved" and "the ledger is back" are turns of the promise queue: try them all.
    it.each(Array.from({ length: 12 }, (_, turns) => turns))(
      'P3: nor is it forgotten if it fails %i turns after the answer',
      async (turns) => {
        const commit = Promise.withResolvers<StoredOrder[]>();
        const answer = Promise.withResolvers<void>();
        const working = { commitOrders: ledger.commitOrders, storedAtRest: ledger.storedAtRest };
        ledger.storedAtRest = async (ids) => {
          await answer.promise;
          return working.storedAtRest.call(ledger, ids);
        };
        // Under way when the ledger went out.
        ledger.commitOrders = () => commit.promise;
        const writing = write('2');
        unresolved.reportFailure(unavailable('the connection broke'));
        ledger.commitOrders = () => Promise.reject(unavailable('the connection broke'));
        await write('3');
        await runtime.timers.advance(PROBE_MS);
        answer.resolve();
        for (let turn = 0; turn < turns; turn++) await Promise.resolve();
        ledger.rows.set('2', record(message('2'), null));
        commit.reject(unavailable('the connection broke'));
        await writing;
        Object.assign(ledger, working);
        await runtime.timers.advance(PROBE_MS * 4);
        expect(heard.filter((what) => !what.startsWith('failed')).toSorted()).toEqual(['stored 2', 'withdrawn 3']);
        expect([unresolved.reason, unresolved.size]).toEqual([null, 0]);
      },
    );
  });

  describe('a fault about which the ledger cannot be asked', () => {
    it('P4: is asked about again, and its hold is not forgotten', async () => {
      ledger.poison.add('1');
      const asking = ledger.storedAtRest.bind(ledger);
      ledger.storedAtRest = () => Promise.reject(unavailable('cannot read'));
      await write('1');
      expect(heard).toEqual(['failed 1: poison']);
      ledger.storedAtRest = asking;
      await runtime.timers.advance(PROBE_MS * 4);
      expect(heard).toEqual(['failed 1: poison', 'withdrawn 1']);
      expect([unresolved.reason, unresolved.size]).toEqual([null, 0]);
    });
  });

  describe('a fault with the id of an order that is stored', () => {
    it('P1: does not give the units of that order back', async () => {
      const world = sqliteUnderTest();
      onTestFinished(() => world.close());
      const items = [{ code: 'v', name: 'V', price: { amount: 1, currency: 'CNY' }, stock: 1 }];
      const sale = newSale({ opensAtMs: T0, closesAtMs: T0 + 1000, items });
      const call = { by: actor('admin', 'admin'), auditId: '1', keyed: null, answer: () => '' };
      await world.ledger.createSale({ ...sale, id: '5', itemIds: ['6'] }, call);
      const gate = new MemoryGate(runtime, () => {});
      await gate.install((await world.ledger.rebuildSnapshot('5'))!);
      const request = { saleId: '5', orderId: '1', itemCode: 'v', buyer: 'b1', quantity: 1, key: null };
      const verdict = await gate.admit({ ...request, fingerprint: orderFingerprint('v', 1) });
      if (verdict.outcome !== 'admitted') throw new Error(verdict.outcome);
      const effects: UnresolvedEffects = {
        decided: async (stored) => {
          for (const { order } of stored) await gate.settle('5', [{ orderId: order.id, buyer: order.buyer }]);
        },
        withdrawn: (message) => gate.withdraw('5', message),
        failed: () => {},
      };
      const asking = new Unresolved(world.ledger, runtime, effects);
      const real = new Writer(world.ledger, runtime, { ...effects, committed: () => {} }, asking);
      await (await real.write([verdict.message])).told;
      await (await real.write([{ ...verdict.message, buyer: 'mallory' }])).told;
      asking.close();
      expect((await world.ledger.getSale('5'))!.items[0]).toMatchObject({ total: 1, reserved: 1 });
      expect(await gate.view('5')).toMatchObject([{ total: 1, free: 0, held: 1 }]);
    });
  });

  describe('failures elsewhere', () => {
    it('take the ledger out in the same way', async () => {
      unresolved.reportFailure(unavailable('no id block'));
      expect(unresolved.reason).toBe('no id block');
      await write('1');
      expect(ledger.batches).toEqual([]);
      await runtime.timers.advance(PROBE_MS);
      expect(unresolved.reason).toBeNull();
      expect(heard).toEqual(['failed 1: no id block', 'withdrawn 1']);
    });

    it('P10: one row that somebody holds is not the ledger’s state: others buy on', () => {
      unresolved.reportFailure(new BusyError('the database cannot serve (55P03)'));
      expect(unresolved.reason).toBeNull();
    });

    it('that are not the ledger’s state do not', () => {
      unresolved.reportFailure(new TerminalError('bad', 'a bug'));
      unresolved.reportFailure(new RetryableError('overloaded', 'too many'));
      unresolved.reportFailure(new Error('a bug'));
      expect(unresolved.reason).toBeNull();
    });
  });

  describe('maintenance', () => {
    it('waits until nothing else is to do, and goes on until nothing waits', async () => {
      ledger.backlog = 150_000;
      for (let commits = 0; commits < 10; commits++) {
        await write(String(commits));
        await runtime.timers.advance(20);
      }
      expect(ledger.slices, 'busy').toEqual([]);
      await runtime.timers.advance(1000);
      expect(ledger.slices.length).toBeGreaterThanOrEqual(2);
      expect(ledger.backlog).toBe(0);
      expect(runtime.timers.pending, 'at rest').toBe(0);
    });

    it('does not wait when too much has piled up', async () => {
      ledger.backlog = 250_000;
      await write('1');
      expect(ledger.slices).toHaveLength(1);
    });

    it('that finds the ledger out takes it out', async () => {
      ledger.maintenanceError = unavailable('the disk is full');
      await write('1');
      await runtime.timers.advance(1000);
      // The probe of the stub succeeds at once: it was out and is back.
      expect(ledger.probes).toBe(1);
      expect(unresolved.reason).toBeNull();
    });
  });

  it('leaves no timer behind when it is closed', async () => {
    ledger.out = unavailable('the disk is full');
    await write('1');
    close();
    expect(runtime.timers.pending).toBe(0);
    await runtime.timers.advance(PROBE_MS * 2);
    expect(ledger.probes).toBe(0);
  });
});
