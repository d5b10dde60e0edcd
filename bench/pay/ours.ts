import { IdSequence } from '../../src/base/ids.ts';
import { systemRuntime } from '../../src/base/runtime.ts';
import { wireLife } from '../../src/engine/life.ts';
import { MemoryGate } from '../../src/gate/memory.ts';
import type { Ledger } from '../../src/ledger/port.ts';
import { createLocks, MemorySpace } from '../../src/locks/index.ts';
import { actor } from '../../src/model/actor.ts';
import { confirm, type PayResult, pay } from '../../src/orders/life/pay.ts';
import type { PaymentProvider } from '../../src/payments/port.ts';
import { PRICE } from './floors.ts';

/** A shop's payments without its sweeper: no order expires here, and no payment stays open. */
export interface Ours {
  /** Pays with a provider in this process that answers at once. Resolves after its own commit. */
  pay(orderId: string): Promise<void>;
  /** Confirms a payment that the shop took itself. */
  confirm(orderId: string): Promise<void>;
  /** Moves, and transactions that they were grouped into, so far. */
  readonly moved: { moves: number; commits: number };
  end(): Promise<void>;
}

/** As in engine/shop.ts. */
const LIFE_ID_BLOCK = 20_000;
const BUYER = actor('buyer', 'bench', '127.0.0.1');

const nothing = (): never => {
  throw new Error('nobody asks for this here');
};

const provider: PaymentProvider = {
  name: 'instant',
  capture: async ({ attemptId, amount }) => ({ state: 'captured', reference: `ref-${attemptId}`, amount }),
  query: nothing,
  void: nothing,
  refund: nothing,
};

/** `redis`: the Redis of the orders' locks, as in a distributed shop; null: locks in this process, as in an embedded one. */
export function openOurs(ledger: Ledger, redis: string | null): Ours {
  const runtime = systemRuntime();
  const place = redis === null ? { space: new MemorySpace(runtime.clock) } : { redis, prefix: 'bench:lock' };
  const locks = createLocks({ ...place, log: runtime.log, runtime });
  const ids = (kind: 'attempt' | 'audit'): IdSequence =>
    new IdSequence(kind, (of, size) => ledger.takeIdBlock(of, size), runtime.clock, LIFE_ID_BLOCK);
  const moved = { moves: 0, commits: 0 };
  const { life, sweeper } = wireLife({
    runtime,
    ledger,
    gate: new MemoryGate(runtime, nothing),
    locks,
    attemptIds: ids('attempt'),
    auditIds: ids('audit'),
    payments: { sandbox: false, providers: [provider] },
    reached: () => undefined,
    place: nothing,
    touched: () => undefined,
    moved: () => undefined,
    committed: (moves) => {
      moved.moves += moves;
      moved.commits++;
    },
    watched: (work) => work,
    queuedOrder: nothing,
    lead: nothing,
  });
  const mustBePaid = (result: PayResult): void => {
    if (!result.ok || result.state !== 'paid') throw new Error(`not paid: ${JSON.stringify(result)}`);
  };
  return {
    pay: async (orderId) => mustBePaid(await pay(life, orderId, { method: provider.name, token: null }, BUYER)),
    confirm: async (orderId) => mustBePaid(await confirm(life, orderId, `till-${orderId}`, PRICE, BUYER)),
    moved,
    end: async () => {
      await sweeper.stop();
      await locks.close();
    },
  };
}
