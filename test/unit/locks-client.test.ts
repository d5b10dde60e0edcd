import { describe, expect, it } from 'vitest';
import { KeepAlive } from '../../src/base/keep-alive.ts';
import { systemRuntime } from '../../src/base/runtime.ts';
import { LockClient } from '../../src/locks/client/client.ts';
import { UnavailableError } from '../../src/locks/client/errors.ts';
import { Emitter } from '../../src/locks/client/events.ts';
import { Hold } from '../../src/locks/client/hold.ts';
import type {
  AcquireReply,
  AcquireRequest,
  LockStore,
  ReleaseReply,
  ReleaseRequest,
} from '../../src/locks/client/port.ts';
import type { Wanted } from '../../src/locks/client/wanted.ts';

/** The client on a store whose answers the test gives, one by one: for orders of events that a real one shows once a night. */
interface Asked<Request, Reply> {
  readonly request: Request;
  answer(reply: Reply): void;
  fail(): void;
}

class Store {
  readonly client = 'client';
  readonly remote = true;
  readonly clock = null;
  readonly acquires: Asked<AcquireRequest, AcquireReply>[] = [];
  readonly releases: Asked<ReleaseRequest, ReleaseReply>[] = [];
  renewals = 0;

  hears(): boolean {
    return true;
  }

  #asked<Q extends object, R>(all: Asked<Q, R>[], request: Q): Promise<R> {
    return new Promise((answer, reject) => {
      all.push({ request: { ...request }, answer, fail: () => reject(new UnavailableError('out')) });
    });
  }

  acquire(request: AcquireRequest): Promise<AcquireReply> {
    return this.#asked(this.acquires, request);
  }

  /** Never answered. */
  renew(): Promise<never> {
    this.renewals++;
    return new Promise(() => undefined);
  }

  release(request: ReleaseRequest): Promise<ReleaseReply> {
    return this.#asked(this.releases, request);
  }
}

const WANTED: Wanted = { kind: 'fair', name: 'f', mode: 'write', permits: 1, limit: 1 };

function open(handOverMs = 500): { client: LockClient; store: Store } {
  const settings = { leaseMs: 30_000, handOverMs, outageMs: 5000, owner: 'host/1' };
  const client = new LockClient(settings, systemRuntime(), new Emitter(() => undefined), new KeepAlive());
  const store = new Store();
  client.attach(store as unknown as LockStore);
  return { client, store };
}

async function until(what: () => boolean): Promise<void> {
  while (!what()) await new Promise((resolve) => setTimeout(resolve, 1));
}

/** One holds, one waits, and the first release was not answered: it is sent again. */
async function handingOver() {
  const { client, store } = open();
  const holding = client.take(WANTED, client.plainTerms);
  store.acquires[0]!.answer({ outcome: 'granted', token: 1 });
  const held = (await holding) as Hold;
  const waiting = client.take(WANTED, client.plainTerms);
  store.acquires[1]!.answer({ outcome: 'queued', retryMs: 30_000, ticket: 7 });
  const { rid } = store.acquires[1]!.request;
  const released = client.giveBack(held);
  store.releases[0]!.fail();
  await until(() => store.releases.length === 2);
  return { client, store, waiting, released, rid };
}

const turns = () => new Promise((resolve) => setTimeout(resolve, 30));

describe('LockClient', () => {
  it('what a waiter had by asking is not given back when the hand-over is told after it', async () => {
    const { client, store, waiting, released, rid } = await handingOver();
    client.interrupted();
    expect(store.acquires[2]!.request.rid).toBe(rid);
    // Of two answers that come together the one that went by a slower way through our own code is heard last.
    store.acquires[2]!.answer({ outcome: 'granted', token: 2 });
    store.releases[1]!.answer({ given: 2, to: rid });
    const hold = (await waiting) as Hold;
    await released;
    await turns();
    expect(hold).toBeInstanceOf(Hold);
    expect(hold.isHeld()).toBe(true);
    expect(store.releases.map(({ request }) => request.rid)).not.toContain(rid);
  });

  it('what is handed to a waiter that has given up is given back', async () => {
    const { client, store, waiting, released, rid } = await handingOver();
    waiting.catch(() => undefined);
    const controller = new AbortController();
    const aborted = client.take(WANTED, { ...client.plainTerms, signal: controller.signal });
    aborted.catch(() => undefined);
    const { rid: gone } = store.acquires[2]!.request;
    store.acquires[2]!.answer({ outcome: 'queued', retryMs: 30_000, ticket: 8 });
    await turns();
    controller.abort();
    // Its own clean-up got through, so that all was well; and then the store gives it to that one all the same.
    store.releases[2]!.answer('dequeued');
    store.releases[1]!.answer({ given: 2, to: gone });
    await released;
    await turns();
    expect(store.releases[3]!.request).toMatchObject({ rid: gone, ambiguous: true });
    expect(rid).not.toBe(gone);
  });

  it('a release that was sent again and finds nothing has those who wait here ask', async () => {
    const { store, released, rid } = await handingOver();
    store.releases[1]!.answer('absent');
    await released;
    expect(store.acquires[2]!.request.rid).toBe(rid);
  });
});

describe('who waits for a lock', () => {
  it('is not believed to be in the queue when the store says that nobody waits', async () => {
    const { client, store } = open();
    const first = client.take(WANTED, client.plainTerms);
    store.acquires[0]!.answer({ outcome: 'granted', token: 1 });
    const held = (await first) as Hold;
    const waiting = client.take(WANTED, client.plainTerms);
    waiting.catch(() => undefined);
    store.acquires[1]!.answer({ outcome: 'queued', retryMs: 30_000, ticket: 9 });
    await turns();
    const released = client.giveBack(held);
    // The queue was lost.
    store.releases[0]!.answer('released');
    await released;
    expect(store.acquires[2]!.request.rid).toBe(store.acquires[1]!.request.rid);
  });
});

describe('a hold that was lost here', () => {
  it('is given back when it may have been renewed there', async () => {
    const { client, store } = open(100);
    const wanted: Wanted = { ...WANTED, kind: 'mutex' };
    const first = client.take(wanted, client.plainTerms);
    store.acquires[0]!.answer({ outcome: 'granted', token: 1 });
    const second = client.take(wanted, client.plainTerms);
    store.acquires[1]!.answer({ outcome: 'queued', retryMs: 30_000, ticket: 7 });
    await turns();
    const released = client.giveBack((await first) as Hold);
    store.releases[0]!.answer({ given: 2, to: store.acquires[1]!.request.rid });
    await released;
    const held = (await second) as Hold;
    await until(() => store.renewals === 1);
    await until(() => !held.isHeld());
    expect(store.releases[1]!.request).toMatchObject({ rid: held.rid, ambiguous: true });
  });
});
