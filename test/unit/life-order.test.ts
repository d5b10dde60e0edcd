import { rmSync } from 'node:fs';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { ManualClock } from '../../src/base/clock.ts';
import { type IdKind, IdSequence } from '../../src/base/ids.ts';
import { silentLog } from '../../src/base/logger.ts';
import { type Runtime, systemRuntime } from '../../src/base/runtime.ts';
import { lead } from '../../src/engine/lead.ts';
import { wireLife } from '../../src/engine/life.ts';
import { MemoryGate } from '../../src/gate/memory.ts';
import type { Gate } from '../../src/gate/port.ts';
import { SqliteLedger } from '../../src/ledger/drivers/sqlite/ledger.ts';
import type { Ledger, Move, NewAttempt } from '../../src/ledger/port.ts';
import { UnavailableError } from '../../src/locks/client/errors.ts';
import { createLocks, type Locks } from '../../src/locks/locks.ts';
import { MemorySpace } from '../../src/locks/memory/space.ts';
import { actor } from '../../src/model/actor.ts';
import { type OrderMessage, type OrderRecord, orderFingerprint } from '../../src/model/order.ts';
import { cancel } from '../../src/orders/life/cancel.ts';
import type { Life } from '../../src/orders/life/life.ts';
import { hear } from '../../src/orders/life/news.ts';
import { confirm, pay as payOrder } from '../../src/orders/life/pay.ts';
import type { CheckedProvider } from '../../src/orders/life/provider.ts';
import { refund } from '../../src/orders/life/refund.ts';
import { settle } from '../../src/orders/life/settle.ts';
import type { Sweeper } from '../../src/orders/life/sweeper.ts';
import type { PlaceRequest, PlaceResult } from '../../src/orders/place.ts';
import type { PaymentProvider, ProviderNews } from '../../src/payments/port.ts';
import { settled, T0 } from '../contract/manual.ts';
import { Bank, type Plan } from '../support/life-bank.ts';
import { newSale } from '../support/new-sale.ts';
import { temporary } from '../support/sqlite-ledger.ts';

/**
 * The order of locks and effects in every flow, as it happens (docs/internals/order-life.md, Flows): the order's lock first and last; the attempt
 * is committed before the provider is called; the provider is asked before an order with an open attempt is freed;
 * nothing is free in the gate before the ledger has committed that it is. A write of the ledger is noted when its caller
 * hears of its commit, everything else when it is asked for: who does not wait is seen.
 */
const SALE = '500';
const ITEM = '501';
const PRICE = { amount: 8000, currency: 'CNY' };
const BY = actor('system', 'test');
const PAY_WITHIN_MS = 60_000;

const WRITES = new Set([
  'moveOrders',
  'openAttempts',
  'openAttempt',
  'closeAttempt',
  'startRefund',
  'finishRefund',
  'postponeAttempts',
  'released',
  'commitOrders',
]);

let trace: string[];
let fences: (string | null)[];
let clock: ManualClock;
let ledger: SqliteLedger;
let gate: Gate;
let bank: Bank;
let life: Life;
let sweeper: Sweeper;
let folder: string;
let locksOut: boolean;
let nextId = 1000;
const id = (): string => String(++nextId);

/** Notes the writes of the ledger when whoever asked for one hears of its commit: some time after it. */
function noted(of: SqliteLedger): Ledger {
  return new Proxy(of, {
    get(target, name) {
      const value = Reflect.get(target, name, target);
      if (typeof value !== 'function') return value;
      if (!WRITES.has(String(name))) return value.bind(target);
      return async (...args: unknown[]) => {
        const answer = await value.apply(target, args);
        await settled();
        trace.push(...labels(String(name), args, answer));
        return answer;
      };
    },
  });
}

function labels(name: string, [first, second]: unknown[], answer: unknown): string[] {
  switch (name) {
    case 'moveOrders':
      return (first as Move[]).map(({ event, fence }, at) => {
        fences.push(fence);
        const { outcome } = (answer as { outcome: string }[])[at]!;
        return outcome === 'moved' ? `ledger ${event}` : `ledger ${event}: ${outcome}`;
      });
    case 'openAttempts':
      return (first as NewAttempt[]).map(({ fence }, at) => {
        fences.push(fence);
        const { outcome } = (answer as { outcome: string }[])[at]!;
        return outcome === 'opened' ? 'ledger attempt' : `ledger attempt: ${outcome}`;
      });
    case 'closeAttempt':
      return [`ledger ${(second as { state: string }).state}`];
    default:
      return [`ledger ${name}`];
  }
}

function notedBank(provider: PaymentProvider): PaymentProvider {
  const note =
    <A, R>(what: string, call: (argument: A) => Promise<R>) =>
    async (argument: A): Promise<R> => {
      trace.push(`bank ${what}`);
      await settled();
      const answer = await call(argument);
      await settled();
      trace.push(`bank ${what} answered`);
      return answer;
    };
  return {
    name: provider.name,
    capture: note('capture', (request) => provider.capture(request)),
    query: note('query', (attemptId) => provider.query(attemptId)),
    void: note('void', (attemptId) => provider.void(attemptId)),
    refund: note('refund', (request) => provider.refund(request)),
  };
}

function notedLocks(locks: Locks): Locks {
  return new Proxy(locks, {
    get(target, name) {
      if (name !== 'mutex') return Reflect.get(target, name, target);
      return (lockName: string) => ({
        acquire: async (options: object) => {
          expect(lockName).toMatch(/^order:\d+$/);
          if (locksOut) throw new UnavailableError('Redis is out');
          const grant = await target.mutex(lockName).acquire(options);
          trace.push('lock');
          return {
            token: grant.token,
            release: async () => {
              trace.push('unlock');
              await grant.release();
            },
          };
        },
      });
    },
  });
}

beforeEach(async () => {
  [trace, fences, locksOut] = [[], [], false];
  clock = new ManualClock(T0);
  const runtime: Runtime = { ...systemRuntime(silentLog()), clock };
  folder = temporary();
  ledger = SqliteLedger.open(folder, runtime);
  bank = new Bank();
  const messages: OrderMessage[] = [];
  const memory = new MemoryGate(runtime, (message) => void messages.push(message));
  gate = new Proxy(memory, {
    get(target, name) {
      const value = Reflect.get(target, name, target);
      if (typeof value !== 'function') return value;
      return (...args: unknown[]) => {
        if (name === 'release' || name === 'admit') trace.push(`gate ${name}`);
        return value.apply(target, args);
      };
    },
  });
  const watching = noted(ledger);
  const ids = (kind: IdKind) => new IdSequence(kind, (of, size) => ledger.takeIdBlock(of, size), clock, 100);
  const place = async ({ saleId, itemCode, buyer, quantity, key }: PlaceRequest): Promise<PlaceResult> => {
    const fingerprint = orderFingerprint(itemCode, quantity);
    const verdict = await gate.admit({ saleId, orderId: id(), itemCode, buyer, quantity, key, fingerprint });
    if (verdict.outcome !== 'admitted') return { ok: false, code: verdict.outcome as 'sold_out' };
    const [stored] = await watching.commitOrders(messages.splice(0));
    await gate.settle(saleId, [{ orderId: stored!.order.id, buyer }]);
    return { ok: true, order: stored!.order, replayed: false };
  };
  const locks = createLocks({ space: new MemorySpace(clock), runtime: { clock } });
  ({ life, sweeper } = wireLife({
    runtime,
    ledger: watching,
    gate,
    locks: notedLocks(locks),
    attemptIds: ids('attempt'),
    auditIds: ids('audit'),
    payments: { sandbox: false, providers: [notedBank(bank.provider())], answerWithinMs: 30 },
    reached: () => undefined,
    place,
    touched: () => undefined,
    moved: () => undefined,
    committed: () => undefined,
    watched: (work) => work,
    queuedOrder: async () => null,
    lead: (work) => lead(null, 'life', work),
  }));
  const items = [{ code: 'voucher', name: 'Voucher', price: PRICE, stock: 1 }];
  const window = { opensAtMs: T0, closesAtMs: T0 + 1e10 };
  const sale = newSale({ ...window, perBuyer: 2, payWithinSeconds: PAY_WITHIN_MS / 1000, items });
  const call = { by: actor('admin', 'admin'), auditId: id(), keyed: null, answer: () => '' };
  await ledger.createSale({ ...sale, id: SALE, itemIds: [ITEM] }, call);
  await gate.install((await ledger.rebuildSnapshot(SALE))!);
  placing = place;
});

afterEach(async () => {
  await sweeper.stop();
  await ledger.close();
  rmSync(folder, { recursive: true, force: true });
});

let placing: (request: PlaceRequest) => Promise<PlaceResult>;

async function order(buyer = 'alice'): Promise<OrderRecord> {
  const placed = await placing({ saleId: SALE, itemCode: 'voucher', buyer, quantity: 1, key: null });
  if (!placed.ok) throw new Error(placed.code);
  [trace, fences] = [[], []];
  return placed.order;
}

const pay = (one: OrderRecord, plan: Plan = 'captured') => payOrder(life, one.id, { method: 'bank', token: plan }, BY);

/** What a flow did, in order; the trace begins anew. */
async function flow(work: Promise<unknown>): Promise<string[]> {
  await work;
  // What it left to happen after its answer.
  for (let turn = 0; turn < 10; turn++) await settled();
  const happened = trace;
  trace = [];
  return happened.map((what) => what.replace(' answered', ' ✓')).filter((what) => !what.startsWith('ledger postpone'));
}

/** One pass, and all that it began. */
const payments = async (): Promise<void> => {
  await sweeper.due.payments();
  await sweeper.due.idle();
};

const free = async (): Promise<number> => (await gate.view(SALE))![0]!.free;

/** With the locks out the same happens without them: they save work, and nothing rests on them. */
describe.each([
  ['with the order’s lock', false],
  ['with the locks out', true],
])('%s', (_, out) => {
  beforeEach(() => {
    locksOut = out;
  });

  /** Checks the order of a flow, lock first and last; and that each write of it carried the lock's token. */
  async function expectFlow(work: Promise<unknown>, effects: string[]): Promise<void> {
    const locked = out ? effects : ['lock', ...effects, 'unlock'];
    expect(await flow(work)).toEqual(locked);
    expect(
      fences.every((fence) => (fence === null) === out),
      `fences ${fences}`,
    ).toBe(true);
    fences = [];
  }

  it('pay: attempt → provider → order', async () => {
    await expectFlow(pay(await order()), ['ledger attempt', 'bank capture', 'bank capture ✓', 'ledger pay']);
  });

  it('pay, declined: attempt → provider → attempt', async () => {
    const one = await order();
    await expectFlow(pay(one, 'declined'), ['ledger attempt', 'bank capture', 'bank capture ✓', 'ledger failed']);
  });

  it('pay, not answered: attempt → provider, and the lock is free again', async () => {
    await expectFlow(pay(await order(), 'travelling'), ['ledger attempt', 'bank capture']);
  });

  it('pay, with an old attempt that is pending: provider asked, given up, and then the next', async () => {
    const one = await order();
    await flow(pay(one, 'travelling'));
    await expectFlow(pay(one), ['ledger attempt: payment_open', 'bank query', 'bank query ✓']);
    clock.advance(31_000);
    await expectFlow(pay(one), [
      'ledger attempt: payment_open',
      'bank query',
      'bank query ✓',
      'bank void',
      'bank void ✓',
      'ledger voided',
      'ledger attempt',
      'bank capture',
      'bank capture ✓',
      'ledger pay',
    ]);
  });

  it('confirm: order; with an open attempt: provider first', async () => {
    const one = await order();
    await flow(pay(one, 'travelling'));
    await expectFlow(confirm(life, one.id, 'till', PRICE, BY), [
      'ledger pay: payment_open',
      'bank query',
      'bank query ✓',
      'bank void',
      'bank void ✓',
      'ledger voided',
      'ledger pay',
    ]);
    await expectFlow(confirm(life, one.id, 'till', PRICE, BY), ['ledger pay: repeat']);
  });

  it('cancel: ledger → gate', async () => {
    const one = await order();
    await expectFlow(cancel(life, one.id, BY), ['ledger cancel', 'gate release', 'ledger released']);
    expect(await free()).toBe(1);
    await expectFlow(cancel(life, one.id, BY), ['ledger cancel: repeat']);
    expect(await free()).toBe(1);
  });

  it('cancel, with an open attempt: provider asked and given up → ledger → gate', async () => {
    const one = await order();
    await flow(pay(one, 'pending'));
    await expectFlow(cancel(life, one.id, BY), [
      'ledger cancel: payment_open',
      'bank query',
      'bank query ✓',
      'bank void',
      'bank void ✓',
      'ledger voided',
      'ledger cancel',
      'gate release',
      'ledger released',
    ]);
  });

  it('cancel, with money that has come: it is paid, and nothing is freed', async () => {
    const one = await order();
    await flow(pay(one, 'silent'));
    await expectFlow(cancel(life, one.id, BY), [
      'ledger cancel: payment_open',
      'bank query',
      'bank query ✓',
      'ledger pay',
      'ledger cancel: refused',
    ]);
    expect(await free()).toBe(0);
  });

  it('refund: the intention → provider → ledger → gate', async () => {
    const one = await order();
    await flow(pay(one));
    fences = [];
    await expectFlow(refund(life, one.id, BY), [
      'ledger startRefund',
      'bank refund',
      'bank refund ✓',
      'ledger refund',
      'gate release',
      'ledger released',
    ]);
    await expectFlow(refund(life, one.id, BY), []);
  });

  it('refund, with the provider out: the intention stays, the unit is not free; the sweeper goes on with it', async () => {
    const one = await order();
    await flow(pay(one));
    fences = [];
    bank.mood = 'down';
    const refused = refund(life, one.id, BY).catch((error: unknown) => error);
    await expectFlow(refused, ['ledger startRefund', 'bank refund']);
    expect(await free()).toBe(0);
    bank.mood = 'well';
    clock.advance(2000);
    await expectFlow(payments(), ['bank refund', 'bank refund ✓', 'ledger refund', 'gate release', 'ledger released']);
  });

  it('expiry of many: one transaction → gate; no provider, so no lock', async () => {
    await order();
    clock.advance(PAY_WITHIN_MS);
    expect(await flow(sweeper.expire())).toEqual(['ledger expire', 'gate release', 'ledger released']);
    expect(await free()).toBe(1);
  });

  it('expiry with an open attempt: provider asked and given up under the lock; only then ledger → gate', async () => {
    const one = await order();
    clock.advance(PAY_WITHIN_MS - 5000);
    await flow(pay(one, 'pending'));
    fences = [];
    clock.advance(5000);
    expect(await flow(sweeper.expire())).toEqual([]);
    await expectFlow(payments(), ['bank query', 'bank query ✓', 'bank void', 'bank void ✓', 'ledger voided']);
    expect(await free()).toBe(0);
    expect(await flow(sweeper.expire())).toEqual(['ledger expire', 'gate release', 'ledger released']);
  });

  it('expiry with an open attempt and no word from the provider: nothing is freed', async () => {
    const one = await order();
    clock.advance(PAY_WITHIN_MS - 5000);
    await flow(pay(one, 'pending'));
    fences = [];
    bank.mood = 'down';
    clock.advance(5000);
    expect(await flow(sweeper.expire())).toEqual([]);
    await expectFlow(payments(), ['bank query']);
    expect(await flow(sweeper.expire())).toEqual([]);
    expect(await free()).toBe(0);
    expect((await ledger.getOrder(one.id))!.status).toBe('reserved');
  });

  it('news of a capture: order; of a failure: attempt; of money that went back: ledger → gate', async () => {
    const one = await order();
    await flow(pay(one, 'pending'));
    fences = [];
    bank.finish(bank.pending()[0]!.id, 'captured');
    await expectNews(bank.news[0]!, ['ledger pay']);
    await expectNews(bank.news[0]!, ['ledger pay: repeat']);
    bank.chargeBack([...bank.book.keys()][0]!);
    await expectNews(bank.news[1]!, [
      'ledger startRefund',
      'ledger finishRefund',
      'ledger refund',
      'gate release',
      'ledger released',
    ]);
    const other = await order('bob');
    await flow(pay(other, 'pending'));
    fences = [];
    bank.finish(bank.pending()[0]!.id, 'declined');
    await expectNews(bank.news[2]!, ['ledger failed']);
  });

  /** Whether the provider is asked besides is its own business; what is written, and in which order, is not. */
  async function expectNews(news: ProviderNews, effects: string[]): Promise<void> {
    const happened = await flow(hear(life, news));
    const locked = out ? effects : ['lock', ...effects, 'unlock'];
    expect(happened.filter((what) => !what.startsWith('bank query'))).toEqual(locked);
    fences = [];
  }

  /** Declined, expired or cancelled, and then captured at the bank after all. */
  async function late(end: 'expired' | 'cancelled' = 'expired'): Promise<OrderRecord> {
    const one = await order();
    await flow(pay(one, 'declined'));
    if (end === 'cancelled') await flow(cancel(life, one.id, BY));
    else {
      clock.advance(PAY_WITHIN_MS);
      await flow(sweeper.expire());
    }
    fences = [];
    bank.finish([...bank.book.keys()][0]!, 'captured');
    await expectNews(bank.news.at(-1)!, ['ledger pay: late']);
    return one;
  }

  it('late money with goods: gate → ledger, and then the money moves', async () => {
    await late();
    // The new order is nobody else's: what is moved there needs no token.
    const happened = await flow(payments());
    const effects = ['gate admit', 'ledger commitOrders', 'ledger pay'];
    expect(happened).toEqual(out ? effects : ['lock', ...effects, 'unlock']);
    expect(await free()).toBe(0);
  });

  it('late money of an order that was cancelled goes back, though there are goods', async () => {
    await late('cancelled');
    await expectFlow(payments(), ['ledger startRefund', 'bank refund', 'bank refund ✓', 'ledger finishRefund']);
    expect(await free()).toBe(1);
  });

  it('late money without goods: the gate said no → the intention → provider → ledger', async () => {
    await late();
    await order('quicker');
    await expectFlow(payments(), [
      'gate admit',
      'ledger startRefund',
      'bank refund',
      'bank refund ✓',
      'ledger finishRefund',
    ]);
    expect(bank.book.get([...bank.book.keys()][0]!)).toMatchObject({ state: 'refunded' });
  });
});

describe('the gate is out', () => {
  it('cancel goes on, the unit waits in the outbox, and comes back once with the next sweep', async () => {
    const one = await order();
    const { release } = MemoryGate.prototype;
    MemoryGate.prototype.release = () => Promise.reject(new UnavailableError('Redis is out'));
    try {
      expect(await flow(cancel(life, one.id, BY))).toEqual(['lock', 'ledger cancel', 'gate release', 'unlock']);
    } finally {
      MemoryGate.prototype.release = release;
    }
    expect(await free()).toBe(0);
    expect(await ledger.releases(10, 0)).toMatchObject([{ orderId: one.id, units: 1 }]);
    clock.advance(1500);
    sweeper.start();
    for (let turn = 0; turn < 30 && (await free()) === 0; turn++) await settled();
    expect(await free()).toBe(1);
    await flow(settled());
    expect(await ledger.releases(10, 0)).toEqual([]);
  });
});

describe('a lock that is somebody else’s', () => {
  it('P6: a flow whose token is too small changes nothing; news of money are taken in all the same', async () => {
    const one = await order();
    await flow(pay(one, 'pending'));
    const attemptId = bank.pending()[0]!.id;
    // Somebody with a later token has worked on it since; our own lock was given away while we were stopped.
    const future = { id: id(), orderId: one.id, provider: 'bank', by: BY, askAfterMs: 1000 };
    await ledger.closeAttempt(attemptId, { state: 'voided', error: null }, BY, id());
    await ledger.openAttempt({ ...future, fence: String(9e18) });
    await ledger.closeAttempt(future.id, { state: 'voided', error: null }, BY, id());
    expect(await payOrder(life, one.id, { method: 'bank', token: 'captured' }, BY)).toMatchObject({
      ok: false,
      code: 'payment_in_progress',
    });
    expect(await cancel(life, one.id, BY)).toMatchObject({ ok: false });
    expect(bank.holds(one.id)).toBe(0);
    // What the bank has taken it has: nobody tells it twice.
    bank.finish(attemptId, 'captured');
    await hear(life, bank.news[0]!);
    expect((await ledger.getOrder(one.id))!.status).toBe('paid');
  });

  it('P7: a capture that is found under a token that is too small is not settled', async () => {
    const one = await order();
    await flow(pay(one, 'pending'));
    const attemptId = bank.pending()[0]!.id;
    bank.finish(attemptId, 'captured');
    const attempt = (await ledger.getAttempt(attemptId))!;
    expect(await settle(life, attempt, { by: BY, fence: '0' }, true)).toBe('open');
    expect((await ledger.getOrder(one.id))!.status).toBe('reserved');
    expect(await settle(life, attempt, { by: BY, fence: null }, true)).toBe('paid');
  });

  it('a webhook does not wait for a call that waits for it', async () => {
    const one = await order();
    const returns = Promise.withResolvers<void>();
    const slow = new Bank({ name: 'slow', takesItsTime: () => returns.promise });
    (life.providers as Map<string, CheckedProvider>).set('slow', slow.provider());
    const call = payOrder(life, one.id, { method: 'slow', token: 'captured' }, BY);
    await flow(settled());
    const [attempt] = await ledger.attemptsOf(one.id, 9);
    const news: ProviderNews = {
      provider: 'slow',
      id: 'n',
      type: 'payment.captured',
      orderId: one.id,
      reference: slow.referenceOf(attempt!.id),
      amount: PRICE,
    };
    await Promise.all([hear(life, news), (async () => clock.advance(300))()]);
    expect((await ledger.getOrder(one.id))!.status).toBe('paid');
    returns.resolve();
    expect(await call).toMatchObject({ ok: true });
  });
});
