import { describe, expect, it } from 'vitest';
import { Anchor } from '../../src/base/anchor.ts';
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
import type { Terms, Wanted } from '../../src/locks/client/wanted.ts';

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
  readonly replicated: AcquireRequest[] = [];
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

  acquireReplicated(request: AcquireRequest): Promise<never> {
    this.replicated.push(request);
    return new Promise(() => undefined);
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
  const client = new LockClient(settings, systemRuntime(), new Emitter(() => undefined), new Anchor());
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

  it.each([
    ['at once', 500],
    ['late, so that they ask', 0],
  ])('neighbours who hear of it %s pass it on to each other only so often', async (_, handOverMs) => {
    const { client, store } = open(handOverMs);
    const wanted: Wanted = { ...WANTED, kind: 'mutex' };
    const queued = { outcome: 'queued', retryMs: 30_000, ticket: 7 } as const;
    const answered = (rid: string, reply: AcquireReply): void => {
      store.acquires.findLast(({ request }) => request.rid === rid)!.answer(reply);
    };
    let holding = client.take(wanted, client.plainTerms);
    store.acquires[0]!.answer({ outcome: 'granted', token: 1 });
    let waiting = client.take(wanted, client.plainTerms);
    store.acquires[1]!.answer(queued);
    const next: string[] = [];
    for (let token = 2; token < 60; token++) {
      const held = (await holding) as Hold;
      await new Promise((resolve) => setTimeout(resolve, 1));
      const released = client.giveBack(held);
      const { request, answer } = store.releases.at(-1)!;
      next.push(request.next);
      if (request.next === '') {
        answer('handed');
        break;
      }
      holding = waiting;
      waiting = client.take(wanted, client.plainTerms);
      const { rid } = store.acquires.at(-1)!.request;
      answer({ given: token, to: request.next });
      answered(rid, queued);
      await released;
      if (handOverMs === 0) answered(request.next, { outcome: 'granted', token });
    }
    expect(next.at(-1)).toBe('');
    expect(next.length).toBeGreaterThan(16);
  });

  it('a release that was sent again and finds nothing has those who wait here ask', async () => {
    const { store, released, rid } = await handingOver();
    store.releases[1]!.answer('absent');
    await released;
    expect(store.acquires[2]!.request.rid).toBe(rid);
  });
});

/** A mutex that goes round in this process: one has it from a neighbour, the other waits for it here only. */
async function goingRound() {
  const { client, store } = open();
  const wanted: Wanted = { ...WANTED, kind: 'mutex' };
  const take = (terms: Partial<Terms> = {}) => client.take(wanted, { ...client.plainTerms, ...terms }) as Promise<Hold>;
  const first = take();
  store.acquires[0]!.answer({ outcome: 'granted', token: 1 });
  const second = take();
  store.acquires[1]!.answer({ outcome: 'queued', retryMs: 30_000, ticket: 7 });
  await turns();
  const released = client.giveBack(await first);
  const { request, answer } = store.releases[0]!;
  expect(request).toMatchObject({ next: store.acquires[1]!.request.rid, nextQueued: true });
  answer({ given: 2, to: request.next });
  await released;
  return { client, store, take, held: await second };
}

describe('who waits for a mutex that goes round in this process', () => {
  it('does not ask, and has it from the neighbour', async () => {
    const { client, store, take, held } = await goingRound();
    const [one, two] = [take(), take()];
    await turns();
    expect(store.acquires).toHaveLength(2);
    const released = client.giveBack(held);
    const { request, answer } = store.releases[1]!;
    expect(request.nextQueued).toBe(false);
    answer({ given: 3, to: request.next });
    await released;
    const hold = await one;
    expect(hold.rid).toBe(request.next);
    void client.giveBack(hold);
    const last = store.releases[2]!;
    expect(last.request.next).not.toBe('');
    last.answer({ given: 4, to: last.request.next });
    expect((await two).token).toBe(4n);
    expect(store.acquires).toHaveLength(2);
  });

  it('asks all the same where it does not want to wait, or wants replicas', async () => {
    const { store, take } = await goingRound();
    void take({ waitMs: 0 });
    expect(store.acquires).toHaveLength(3);
    void take({ replicas: 1 });
    expect(store.replicated).toHaveLength(1);
  });

  it('asks after a while, when it is held for longer', async () => {
    const { store, take, held } = await goingRound();
    for (const waiting of [take(), take()]) waiting.catch(() => undefined);
    await until(() => store.acquires.length === 4);
    expect(held.isHeld()).toBe(true);
  });

  it('asks at once when nobody here has it any more', async () => {
    const { client, store, take, held } = await goingRound();
    const released = client.giveBack(held);
    expect(store.releases[1]!.request.next).toBe('');
    const taking = take();
    expect(store.acquires).toHaveLength(3);
    store.releases[1]!.answer('released');
    store.acquires[2]!.answer({ outcome: 'granted', token: 3 });
    await released;
    const again = client.giveBack(await taking);
    store.releases[2]!.answer('released');
    await again;
    void take();
    expect(store.acquires).toHaveLength(4);
  });

  it('is represented by one when the row is over', async () => {
    const { client, store, take, held } = await goingRound();
    const controller = new AbortController();
    const [one, two] = [take({ signal: controller.signal }), take()];
    two.catch(() => undefined);
    held.inARow = 1000;
    held.rowSinceMs = 0;
    const released = client.giveBack(held);
    expect(store.releases[1]!.request.next).toBe('');
    // Together with the release, and not after it.
    expect(store.acquires).toHaveLength(3);
    store.releases[1]!.answer('handed');
    store.acquires[2]!.answer({ outcome: 'queued', retryMs: 30_000, ticket: 9 });
    await released;
    await turns();
    expect(store.acquires).toHaveLength(3);
    // … and when that one gives up, by the next.
    controller.abort();
    await expect(one).rejects.toThrow();
    expect(store.acquires).toHaveLength(4);
  });

  it('is not believed to be in the queue when the store says that nobody waits', async () => {
    const { client, store, take, held } = await goingRound();
    const waiting = take();
    waiting.catch(() => undefined);
    await until(() => store.acquires.length === 3);
    store.acquires[2]!.answer({ outcome: 'queued', retryMs: 30_000, ticket: 9 });
    await turns();
    const released = client.giveBack(held);
    // The queue was lost.
    store.releases[1]!.answer('released');
    await released;
    expect(store.acquires).toHaveLength(4);
  });

  it.each([
    [
      'the release gets no answer',
      async (client: LockClient, store: Store, held: Hold) => {
        client.giveBack(held).catch(() => undefined);
        store.releases[1]!.fail();
      },
    ],
    ['what was held is lost', async (_: LockClient, __: Store, held: Hold) => held.lose('forced')],
  ])('asks, everybody, when %s', async (_, happens) => {
    const { client, store, take, held } = await goingRound();
    const waiting = [take(), take(), take()];
    for (const each of waiting) each.catch(() => undefined);
    await happens(client, store, held);
    await turns();
    expect(store.acquires).toHaveLength(5);
  });

  it('gives up without a word to the store, unless it was just to have it', async () => {
    const { client, store, take, held } = await goingRound();
    const [early, late] = [new AbortController(), new AbortController()];
    const [one, two] = [take({ signal: early.signal }), take({ signal: late.signal })];
    early.abort();
    await expect(one).rejects.toThrow();
    expect(store.releases).toHaveLength(1);
    const released = client.giveBack(held);
    const { request, answer } = store.releases[1]!;
    late.abort();
    await expect(two).rejects.toThrow();
    expect(store.releases[2]!.request.rid).toBe(request.next);
    store.releases[2]!.answer('released');
    answer({ given: 3, to: request.next });
    await released;
    await turns();
    expect(store.releases[3]!.request).toMatchObject({ rid: request.next, ambiguous: true });
  });

  it('is given back what it was given by a pass that came after it had given up', async () => {
    const { client, store, take, held } = await goingRound();
    const controller = new AbortController();
    const waiting = take({ signal: controller.signal });
    const released = client.giveBack(held);
    const { next } = store.releases[1]!.request;
    store.releases[1]!.fail();
    await until(() => store.acquires.length === 3);
    controller.abort();
    await expect(waiting).rejects.toThrow();
    await until(() => store.releases.length === 4);
    // In whichever order the two came: that of the waiter, and the first one again.
    const again = store.releases.slice(2).find(({ request }) => request.rid === held.rid)!;
    store.releases
      .slice(2)
      .find(({ request }) => request.rid === next)!
      .answer('dequeued');
    again.answer('absent');
    await released;
    expect(store.releases[4]!.request).toMatchObject({ rid: next, ambiguous: true });
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
    const { request, answer } = store.releases[0]!;
    answer({ given: 2, to: request.next });
    await released;
    const held = (await second) as Hold;
    await until(() => store.renewals === 1);
    await until(() => !held.isHeld());
    expect(store.releases[1]!.request).toMatchObject({ rid: held.rid, ambiguous: true });
  });
});
