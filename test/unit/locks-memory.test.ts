import { beforeEach, describe, expect, it } from 'vitest';
import { UnavailableError } from '../../src/locks/client/errors.ts';
import type { AcquireReply, AcquireRequest, LockKind, Mode, ReleaseReply, Wake } from '../../src/locks/client/port.ts';
import { WaitQueue } from '../../src/locks/memory/queue.ts';
import { MemoryLockStore, MemorySpace, processSpace } from '../../src/locks/memory/store.ts';
import { type ManualRuntime, manualRuntime, settled, T0 } from '../contract/manual.ts';

const LEASE_MS = 1000;
const HAND_OVER_MS = 100;

let runtime: ManualRuntime;
let space: MemorySpace;

beforeEach(() => {
  runtime = manualRuntime();
  space = new MemorySpace(runtime.clock);
});

type Ask = Partial<AcquireRequest>;

/** One process: a store, what it was told, and commands with what most tests do not care about filled in. */
class Client {
  readonly store: MemoryLockStore;
  readonly told: Wake[] = [];
  readonly kind: LockKind;
  #next = 0;

  constructor(kind: LockKind, prefix = 'p') {
    this.kind = kind;
    const events = { wake: (wake: Wake) => void this.told.push(wake), interrupted: () => undefined };
    this.store = new MemoryLockStore(space, prefix, runtime, events);
  }

  rid(): string {
    return `${this.store.client}.${++this.#next}`;
  }

  ask(rid: string, ask: Ask = {}): Promise<AcquireReply> {
    return this.store.acquire({
      kind: this.kind,
      name: 'n',
      rid,
      mode: 'write',
      permits: 1,
      limit: 1,
      leaseMs: LEASE_MS,
      queue: true,
      ticket: 0,
      handOverMs: HAND_OVER_MS,
      info: 'host/1',
      ...ask,
    });
  }

  release(rid: string, { limit = 1, ambiguous = false, mode = 'write' as Mode } = {}): Promise<ReleaseReply> {
    const { kind } = this;
    return this.store.release({
      kind,
      name: 'n',
      rid,
      mode,
      permits: 1,
      limit,
      handOverMs: HAND_OVER_MS,
      ambiguous,
      backTo: '',
    });
  }

  renew(rid: string, leaseMs = LEASE_MS, info = ''): Promise<boolean> {
    return this.store.renew({ kind: this.kind, name: 'n', rid, mode: 'write', leaseMs, info, exactly: false });
  }

  change(rid: string, nextRid: string, to: Mode, { queue = true, leaseMs = LEASE_MS } = {}) {
    const { kind } = this;
    return this.store.change({ kind, name: 'n', rid, nextRid, to, leaseMs, queue, handOverMs: HAND_OVER_MS, info: '' });
  }

  inspect() {
    return this.store.inspect({ kind: this.kind, name: 'n' });
  }

  force(limit = 1) {
    return this.store.force({ kind: this.kind, name: 'n' }, HAND_OVER_MS, limit);
  }

  async holders(): Promise<string[]> {
    return (await this.inspect()).holders.map(({ rid }) => rid);
  }

  async waiters(): Promise<string[]> {
    return (await this.inspect()).waiters.map(({ rid }) => rid);
  }

  /** The ids that were told this since it was last asked. */
  async heard(event: Wake['event'] = 'granted'): Promise<string[]> {
    await settled();
    return this.told.splice(0).flatMap((wake) => (wake.event === event ? [wake.rid] : []));
  }
}

const granted = { outcome: 'granted', token: expect.any(Number) };
const queued = (retryMs = LEASE_MS) => ({ outcome: 'queued', retryMs, ticket: expect.any(Number) });
const held = (retryMs = LEASE_MS) => ({ outcome: 'held', retryMs, ticket: 0 });

function tokenOf(reply: { outcome: string }): number {
  if (!('token' in reply)) throw new Error(`not granted but ${reply.outcome}`);
  return reply.token as number;
}

function ticketOf(reply: AcquireReply): number {
  if (!('ticket' in reply)) throw new Error(`not queued but ${reply.outcome}`);
  return reply.ticket;
}

describe.each(['mutex', 'fair', 'once'] as const)('in-process %s', (kind) => {
  it('is held by one, in the order of arrival', async () => {
    const a = new Client(kind);
    const b = new Client(kind);
    const [a1, b1, b2, a2] = [a.rid(), b.rid(), b.rid(), a.rid()];
    const first = tokenOf(await a.ask(a1));
    runtime.clock.advance(300);
    expect(await b.ask(b1)).toEqual(queued(700));
    expect(await a.ask(a2)).toEqual(queued(700));
    expect(await b.ask(b2, { queue: false })).toEqual(held(700));
    expect(await a.release(a1)).toBe('handed');
    await settled();
    expect(b.told).toEqual([{ event: 'granted', rid: b1, token: expect.any(Number), atUs: 300_000 }]);
    expect((b.told[0] as { token: number }).token).toBeGreaterThan(first);
    expect(await a.heard()).toEqual([]);
    expect(await b.release(b1)).toBe('handed');
    expect(await a.heard()).toEqual([a2]);
    expect(await a.release(a2)).toBe('released');
    expect(await a.release(a2)).toBe('absent');
    expect(space.size).toBe(0);
  });

  it('gives the same answer when asked again', async () => {
    const a = new Client(kind);
    const [a1, a2] = [a.rid(), a.rid()];
    const first = await a.ask(a1);
    const place = await a.ask(a2);
    runtime.clock.advance(600);
    expect(await a.ask(a1)).toEqual(first);
    expect(await a.ask(a2)).toEqual({ ...place, retryMs: LEASE_MS });
    expect((await a.inspect()).waiting).toBe(1);
    expect(await a.release(a2)).toBe('dequeued');
    expect((await a.inspect()).waiting).toBe(0);
  });

  it('goes to the first waiter when a lease ends, whoever comes by', async () => {
    const a = new Client(kind);
    const [a1, a2, a3] = [a.rid(), a.rid(), a.rid()];
    await a.ask(a1);
    await a.ask(a2);
    runtime.clock.advance(LEASE_MS);
    expect(await a.renew(a1)).toBe(false);
    expect(await a.ask(a3)).toEqual(queued(HAND_OVER_MS));
    expect(await a.heard()).toEqual([a2]);
    // Not confirmed: it goes to the one behind, told by somebody who holds nothing.
    runtime.clock.advance(HAND_OVER_MS);
    expect(await a.release(`${a.store.client}.0`)).toBe('moved');
    expect(await a.heard()).toEqual([a3]);
    expect(await a.renew(a3, LEASE_MS, 'host/2 label')).toBe(true);
    runtime.clock.advance(HAND_OVER_MS);
    const { holders } = await a.inspect();
    expect(holders).toMatchObject([{ rid: a3, remainingMs: 900, info: 'host/2 label', sinceMs: T0 + 1100 }]);
  });

  it('reads its own turn from the reply', async () => {
    const a = new Client(kind);
    const [a1, a2] = [a.rid(), a.rid()];
    await a.ask(a1);
    const ticket = ticketOf(await a.ask(a2));
    runtime.clock.advance(LEASE_MS);
    expect(await a.ask(a2, { ticket })).toEqual(granted);
    expect(await a.heard()).toEqual([]);
    expect((await a.inspect()).holders).toMatchObject([{ rid: a2, remainingMs: LEASE_MS, info: 'host/1' }]);
  });

  it('skips a waiter whose client is closed', async () => {
    const [a, b, c] = [new Client(kind), new Client(kind), new Client(kind)];
    const [a1, b1, c1] = [a.rid(), b.rid(), c.rid()];
    await a.ask(a1);
    await b.ask(b1);
    await c.ask(c1);
    await b.store.close();
    expect(await a.release(a1)).toBe('handed');
    expect(await c.heard()).toEqual([c1]);
    expect(b.told).toEqual([]);
  });

  it('tells a waiter of the client that gives it back by the reply, and nobody else', async () => {
    const [a, b] = [new Client(kind), new Client(kind)];
    const [a1, a2, b1] = [a.rid(), a.rid(), b.rid()];
    await a.ask(a1);
    await a.ask(a2);
    await b.ask(b1);
    const reply = await a.release(a1);
    const [holder] = (await a.inspect()).holders;
    expect(holder?.rid).toBe(a2);
    expect(reply).toEqual({ given: holder?.token, to: a2 });
    expect([...(await a.heard()), ...(await b.heard())]).toEqual([]);
    expect(await a.release(a2)).toBe('handed');
    expect(await b.heard()).toEqual([b1]);
  });

  it('keeps a place by its ticket when the queue was lost', async () => {
    const a = new Client(kind);
    const [a1, a2, a3] = [a.rid(), a.rid(), a.rid()];
    await a.ask(a1, { leaseMs: 200_000 });
    const ticket = ticketOf(await a.ask(a2));
    runtime.clock.advance(60_000);
    expect((await a.inspect()).waiting).toBe(0);
    await a.ask(a3);
    await a.ask(a2, { ticket });
    expect(await a.waiters()).toEqual([a2, a3]);
  });

  it('does not give it to a request that was given up', async () => {
    const a = new Client(kind);
    const a1 = a.rid();
    expect(await a.release(a1, { ambiguous: true })).toBe('absent');
    expect(await a.ask(a1)).toEqual({ outcome: 'gone' });
    expect(space.size).toBe(1);
    runtime.clock.advance(120_000);
    expect(await a.ask(a1)).toEqual(granted);
    await a.release(a1, { ambiguous: true });
    expect(await a.ask(a1)).toEqual({ outcome: 'gone' });
  });

  it('is taken away by force', async () => {
    const a = new Client(kind);
    const [a1, a2] = [a.rid(), a.rid()];
    const token = tokenOf(await a.ask(a1));
    await a.ask(a2);
    expect(await a.force()).toMatchObject([{ rid: a1, token }]);
    await settled();
    expect(a.told).toMatchObject([
      { event: 'granted', rid: a2 },
      { event: 'lost', rid: a1 },
    ]);
    expect(await a.release(a1)).toBe('absent');
    expect(await a.release(a2)).toBe('released');
    expect(await a.force()).toEqual([]);
  });

  it('raises a token and what follows it', async () => {
    const a = new Client(kind);
    const [a1, a2] = [a.rid(), a.rid()];
    const token = tokenOf(await a.ask(a1)) + 5_000_000;
    expect(await a.store.raise({ kind, name: 'n' }, a2, token)).toBe(false);
    expect(await a.store.raise({ kind, name: 'n' }, a1, token)).toBe(true);
    expect(await a.store.raise({ kind, name: 'n' }, a1, 1)).toBe(true);
    expect(tokenOf(await a.ask(a1))).toBe(token);
    await a.release(a1);
    expect(tokenOf(await a.ask(a2))).toBe(token + 1);
  });
});

describe('in-process read-write lock', () => {
  const read = { mode: 'read' } as const;
  let a: Client;
  let b: Client;

  beforeEach(() => {
    a = new Client('readwrite');
    b = new Client('readwrite');
  });

  it('lets readers in together, and not past a waiting writer', async () => {
    const [r1, r2, w, r3] = [a.rid(), a.rid(), a.rid(), a.rid()];
    const first = await a.ask(r1, read);
    runtime.clock.advance(200);
    expect(await a.ask(r2, read)).toEqual(granted);
    expect(await a.ask(w)).toEqual(queued(800));
    expect(await a.ask(r3, read)).toEqual(queued(800));
    expect(await a.ask(r3, { ...read, queue: false })).toEqual(held(800));
    expect(await a.ask(r1, read)).toEqual(first);
    expect(await a.release(r1)).toBe('released');
    expect(await a.release(r2)).toBe('handed');
    expect(await a.heard()).toEqual([w]);
    expect(await a.release(w)).toBe('handed');
    expect(await a.heard()).toEqual([r3]);
    expect(await a.release(r3)).toBe('released');
    expect(space.size).toBe(0);
  });

  it('after a writer all readers, even those behind other writers; after the readers the next writer', async () => {
    const [w1, r1, w2, r2] = [a.rid(), a.rid(), a.rid(), a.rid()];
    await a.ask(w1);
    await a.ask(r1, read);
    await a.ask(w2);
    await a.ask(r2, read);
    expect((await a.inspect()).waiters.map(({ rid, mode }) => [rid, mode])).toEqual([
      [r1, 'read'],
      [w2, 'write'],
      [r2, 'read'],
    ]);
    expect(await a.release(w1)).toBe('handed');
    expect(await a.heard()).toEqual([r1, r2]);
    await a.release(r1);
    expect(await a.release(r2)).toBe('handed');
    expect(await a.heard()).toEqual([w2]);
  });

  it.each([
    { first: 'read', let: [1, 3] },
    { first: 'write', let: [1] },
  ] as const)('after an expired lease the oldest: a $first', async ({ first, let: lets }) => {
    const other = first === 'read' ? 'write' : 'read';
    const rids = [a.rid(), a.rid(), a.rid(), a.rid()] as const;
    await a.ask(rids[0]);
    await a.ask(rids[1], { mode: first });
    await a.ask(rids[2], { mode: other });
    await a.ask(rids[3], { mode: 'read' });
    runtime.clock.advance(LEASE_MS);
    await a.release(`${a.store.client}.0`);
    expect(await a.heard()).toEqual(lets.map((i) => rids[i]));
  });

  it('lets waiting readers in when the last waiting writer leaves or is deaf', async () => {
    const [r1, w1, r2, r3] = [a.rid(), b.rid(), a.rid(), a.rid()];
    await a.ask(r1, read);
    await b.ask(w1);
    await a.ask(r2, read);
    expect(await b.release(w1)).toBe('moved');
    expect(await a.heard()).toEqual([r2]);
    const w2 = b.rid();
    await b.ask(w2);
    expect(await a.ask(r3, { ...read, queue: false })).toEqual(held(HAND_OVER_MS));
    await b.store.close();
    expect(await a.ask(r3, { ...read, queue: false })).toEqual(granted);
  });

  it('skips waiters whose client is closed', async () => {
    const [w1, r1, r2, w2] = [a.rid(), b.rid(), a.rid(), b.rid()];
    await a.ask(w1);
    await b.ask(r1, read);
    await a.ask(r2, read);
    await b.ask(w2);
    await b.store.close();
    expect(await a.release(w1)).toBe('handed');
    expect(await a.heard()).toEqual([r2]);
    expect(await a.holders()).toEqual([r2]);
    expect(await a.release(r2)).toBe('released');
    expect(space.size).toBe(0);
  });

  it('ends each lease by itself', async () => {
    const [r1, r2, w] = [a.rid(), a.rid(), a.rid()];
    await a.ask(r1, read);
    await a.ask(r2, read);
    runtime.clock.advance(600);
    expect(await a.renew(r2)).toBe(true);
    runtime.clock.advance(400);
    expect(await a.holders()).toEqual([r2]);
    expect(await a.renew(r1)).toBe(false);
    expect(await a.ask(w)).toEqual(queued(600));
    runtime.clock.advance(600);
    expect(await a.ask(w)).toEqual(granted);
    expect(await a.heard()).toEqual([]);
  });

  it('upgrades the only reader at once, before waiting writers', async () => {
    const [r, w, up] = [a.rid(), a.rid(), a.rid()];
    const token = tokenOf(await a.ask(r, read));
    await a.ask(w);
    const changed = await a.change(r, up, 'write', { queue: false });
    expect(tokenOf(changed)).toBeGreaterThan(token);
    expect(await a.change(r, up, 'write')).toEqual(changed);
    expect((await a.inspect()).holders).toMatchObject([{ rid: up, mode: 'write' }]);
    expect(await a.release(up)).toBe('handed');
    expect(await a.change(r, up, 'write')).toEqual({ outcome: 'absent' });
  });

  it('upgrades when the other readers have left; a second upgrade is refused at once', async () => {
    const [r1, r2, up1, up2, r3, w] = [a.rid(), a.rid(), a.rid(), a.rid(), a.rid(), a.rid()];
    await a.ask(r1, read);
    runtime.clock.advance(100);
    await a.ask(r2, read);
    await a.ask(w);
    expect(await a.change(r1, up1, 'write', { queue: false })).toEqual({ outcome: 'busy' });
    expect(await a.change(r1, up1, 'write')).toEqual({ outcome: 'queued', retryMs: LEASE_MS, ticket: 0 });
    expect(await a.change(r1, up1, 'write')).toEqual({ outcome: 'queued', retryMs: LEASE_MS, ticket: 0 });
    expect(await a.ask(up1)).toEqual(queued(900));
    expect(await a.waiters()).toEqual([w]);
    expect(await a.change(r2, up2, 'write')).toEqual({ outcome: 'busy' });
    expect(await a.ask(r3, read)).toEqual(queued(900));
    expect(await a.release(r2)).toBe('handed');
    expect(await a.heard()).toEqual([up1]);
    expect((await a.inspect()).holders).toMatchObject([{ rid: up1, mode: 'write', remainingMs: 900 }]);
    expect(await a.release(r1)).toBe('absent');
    expect(await a.release(up1)).toBe('handed');
    expect(await a.heard()).toEqual([r3]);
  });

  it('upgrades when the lease of the last other reader ends', async () => {
    const [r1, r2, up] = [a.rid(), a.rid(), a.rid()];
    await a.ask(r1, { ...read, leaseMs: 5000 });
    await a.ask(r2, read);
    await a.change(r1, up, 'write');
    runtime.clock.advance(LEASE_MS);
    expect(await a.release(`${a.store.client}.0`)).toBe('moved');
    expect(await a.heard()).toEqual([up]);
  });

  it('gives up an upgrade: the reader reads on, and others may again', async () => {
    const [r1, r2, up, r3] = [a.rid(), a.rid(), a.rid(), a.rid()];
    await a.ask(r1, read);
    await a.ask(r2, read);
    await a.change(r1, up, 'write');
    await a.ask(r3, read);
    expect(await a.release(up, { ambiguous: true })).toBe('moved');
    expect(await a.heard()).toEqual([r3]);
    expect(await a.holders()).toEqual([r1, r2, r3]);
    // A late copy.
    expect(await a.change(r1, up, 'write')).toEqual({ outcome: 'absent' });
  });

  it('forgets an upgrade with its reader, and one that nobody would hear of', async () => {
    const [r1, r2, up, r3] = [b.rid(), a.rid(), b.rid(), a.rid()];
    await b.ask(r1, read);
    await a.ask(r2, read);
    await b.change(r1, up, 'write');
    await a.ask(r3, read);
    expect(await b.release(r1)).toBe('handed');
    expect(await a.heard()).toEqual([r3]);
    await a.release(r3);

    const [r4, up4, r5] = [b.rid(), b.rid(), a.rid()];
    await b.ask(r4, read);
    await b.change(r4, up4, 'write');
    await a.ask(r5, read);
    await b.store.close();
    expect(await a.release(r2)).toBe('handed');
    expect(await a.heard()).toEqual([r5]);
    expect(await a.holders()).toEqual([r4, r5]);
  });

  it('downgrades: the same token, readers enter, writers wait on', async () => {
    const [w1, w2, r1, r2, down] = [a.rid(), a.rid(), a.rid(), b.rid(), a.rid()];
    const token = tokenOf(await a.ask(w1));
    await a.ask(w2);
    await a.ask(r1, read);
    await b.ask(r2, read);
    expect(await a.change(w1, down, 'read', { leaseMs: 400 })).toEqual({ outcome: 'granted', token });
    expect(await a.change(w1, down, 'read', { leaseMs: 400 })).toEqual({ outcome: 'granted', token });
    expect(await a.heard()).toEqual([r1]);
    expect(await b.heard()).toEqual([r2]);
    expect((await a.inspect()).holders[0]).toMatchObject({ rid: down, mode: 'read', token, remainingMs: 400 });
    expect(await a.ask(a.rid(), { ...read, queue: false })).toEqual(held(HAND_OVER_MS));
    expect(await a.change(w1, a.rid(), 'read')).toEqual({ outcome: 'absent' });
    expect(await a.waiters()).toEqual([w2]);
  });

  it('is taken away from everybody by force', async () => {
    const [r1, r2, w] = [a.rid(), a.rid(), a.rid()];
    await a.ask(r1, read);
    await a.ask(r2, read);
    await a.ask(w);
    expect((await a.force()).map(({ rid }) => rid)).toEqual([r1, r2]);
    await settled();
    expect(a.told.map(({ event, rid }) => [event, rid])).toEqual([
      ['granted', w],
      ['lost', r1],
      ['lost', r2],
    ]);
    expect(await a.store.raise({ kind: 'readwrite', name: 'n' }, w, 1)).toBe(false);
  });

  it('does not let in a request that was given up', async () => {
    const r = a.rid();
    await a.release(r, { ambiguous: true });
    expect(await a.ask(r, read)).toEqual({ outcome: 'gone' });
  });
});

describe('in-process semaphore', () => {
  let a: Client;
  let b: Client;

  beforeEach(() => {
    a = new Client('semaphore');
    b = new Client('semaphore');
  });

  it('gives permits while they last, and does not let small requests overtake a large one', async () => {
    const [a1, a2, a3, a4] = [a.rid(), a.rid(), a.rid(), a.rid()];
    const first = await a.ask(a1, { limit: 3, permits: 2 });
    runtime.clock.advance(100);
    expect(await a.ask(a2, { limit: 3, permits: 2, queue: false })).toEqual(held(900));
    expect(await a.ask(a2, { limit: 3, permits: 2 })).toEqual(queued(900));
    expect(await a.ask(a3, { limit: 3 })).toEqual(queued(900));
    expect(await a.ask(a4, { limit: 3, queue: false })).toEqual(held(900));
    expect(await a.ask(a1, { limit: 3, permits: 2 })).toEqual(first);
    expect(await a.waiters()).toEqual([a2, a3]);
    expect(await a.release(a1, { limit: 3 })).toBe('handed');
    expect(await a.heard()).toEqual([a2, a3]);
    expect((await a.inspect()).holders).toMatchObject([
      { rid: a2, permits: 2 },
      { rid: a3, permits: 1 },
    ]);
    expect(await a.release(a2, { limit: 3 })).toBe('released');
    expect(await a.release(a3, { limit: 3 })).toBe('released');
    expect(await a.release(a3, { limit: 3 })).toBe('absent');
    expect(space.size).toBe(0);
  });

  it('moves on when the first of the queue leaves, or is deaf', async () => {
    const [a1, b1, a2, b2, a3] = [a.rid(), b.rid(), a.rid(), b.rid(), a.rid()];
    await a.ask(a1, { limit: 3 });
    await b.ask(b1, { limit: 3, permits: 3 });
    await a.ask(a2, { limit: 3 });
    expect(await b.release(b1, { limit: 3 })).toBe('moved');
    expect(await a.heard()).toEqual([a2]);
    await b.ask(b2, { limit: 3, permits: 3 });
    expect(await a.ask(a3, { limit: 3, queue: false })).toMatchObject({ outcome: 'held' });
    await b.store.close();
    expect(await a.ask(a3, { limit: 3, queue: false })).toEqual(granted);
  });

  it('ends each lease by itself', async () => {
    const [a1, a2, a3] = [a.rid(), a.rid(), a.rid()];
    await a.ask(a1, { limit: 2 });
    await a.ask(a2, { limit: 2 });
    await a.ask(a3, { limit: 2 });
    runtime.clock.advance(500);
    expect(await a.renew(a1, LEASE_MS, 'x')).toBe(true);
    runtime.clock.advance(500);
    expect(await a.renew(a2)).toBe(false);
    expect(await a.ask(a3, { limit: 2 })).toEqual(granted);
    expect((await a.inspect()).holders).toMatchObject([
      { rid: a1, remainingMs: 500, info: 'x' },
      { rid: a3, remainingMs: LEASE_MS },
    ]);
  });

  it('cannot give more than there are, until it is resized', async () => {
    const [a1, a2] = [a.rid(), a.rid()];
    expect(await a.ask(a1, { limit: 2, permits: 3, queue: false })).toEqual(held(10_000));
    expect(space.size).toBe(0);
    expect(await a.ask(a1, { limit: 2, permits: 3 })).toEqual(queued(10_000));
    await a.store.resize('n', 3, 2, HAND_OVER_MS);
    expect(await a.heard()).toEqual([a1]);
    expect((await a.inspect()).limit).toBe(3);
    // Smaller again: nothing until so much is back.
    await a.store.resize('n', 1, 2, HAND_OVER_MS);
    await a.renew(a1);
    expect(await a.ask(a2, { limit: 2 })).toEqual(queued());
    expect(await a.release(a1, { limit: 2 })).toBe('handed');
    expect(await a.heard()).toEqual([a2]);
    await a.release(a2, { limit: 2 });
    expect(space.size).toBe(1);
    await a.store.resize('n', null, 2, HAND_OVER_MS);
    expect(space.size).toBe(0);
  });

  it('is taken away from everybody by force', async () => {
    const [a1, a2, a3] = [a.rid(), a.rid(), a.rid()];
    await a.ask(a1, { limit: 2 });
    await a.ask(a2, { limit: 2 });
    await a.ask(a3, { limit: 2, permits: 2 });
    expect((await a.force(2)).map(({ rid }) => rid)).toEqual([a1, a2]);
    await settled();
    expect(a.told.map(({ event, rid }) => [event, rid])).toEqual([
      ['granted', a3],
      ['lost', a1],
      ['lost', a2],
    ]);
  });

  it('does not let in a request that was given up', async () => {
    const a1 = a.rid();
    await a.release(a1, { ambiguous: true });
    expect(await a.ask(a1)).toEqual({ outcome: 'gone' });
  });
});

describe('in-process once', () => {
  it('keeps the result and wakes all who wait', async () => {
    const a = new Client('once');
    const b = new Client('once');
    const [a1, b1, a2] = [a.rid(), b.rid(), a.rid()];
    await a.ask(a1);
    await b.ask(b1);
    await a.ask(a2);
    expect(await b.store.finish('n', b1, 'no', 5000)).toBe(false);
    expect(await a.store.finish('n', a1, 'yes', 5000)).toBe(true);
    expect(await a.store.finish('n', a1, 'yes', 5000)).toBe(true);
    expect(await b.heard('look')).toEqual([b1]);
    expect(await a.heard('look')).toEqual([a2]);
    expect(await b.ask(b1)).toEqual({ outcome: 'done', result: 'yes' });
    expect((await a.inspect()).waiting).toBe(0);
    expect(await a.store.list(['once'])).toEqual([]);
    runtime.clock.advance(5000);
    expect(await b.ask(b1)).toEqual(granted);
    expect(await a.store.finish('n', a1, 'late', 5000)).toBe(false);
  });

  it('cannot be finished after its lease, and can be forgotten', async () => {
    const a = new Client('once');
    const [a1, a2] = [a.rid(), a.rid()];
    await a.ask(a1);
    runtime.clock.advance(LEASE_MS);
    expect(await a.store.finish('n', a1, 'late', 5000)).toBe(false);
    await a.ask(a2);
    await a.store.finish('n', a2, 'yes', 5000);
    expect(await a.store.forget('n')).toBe(true);
    expect(await a.store.forget('n')).toBe(false);
    expect(space.size).toBe(0);
  });
});

describe('in-process latch', () => {
  it('opens at 0, counts each id once, and wakes all who wait', async () => {
    const a = new Client('mutex');
    const { store } = a;
    expect(await store.latchLook('n', a.rid())).toEqual({ count: 0, exists: false });
    expect(await store.latchDown('n', a.rid(), 1, 5000)).toBe(0);
    expect(space.size).toBe(0);
    await store.latchSet('n', 3, 5000);
    const [w1, w2, w3, d1, d2] = [a.rid(), a.rid(), a.rid(), a.rid(), a.rid()];
    for (const rid of [w1, w2, w1, w3]) expect(await store.latchLook('n', rid)).toEqual({ count: 3, exists: true });
    await store.latchLeave('n', w3);
    expect(await store.latchDown('n', d1, 1, 5000)).toBe(2);
    expect(await store.latchDown('n', d1, 1, 5000)).toBe(2);
    expect(await a.heard('look')).toEqual([]);
    expect(await store.latchDown('n', d2, 5, 5000)).toBe(0);
    expect(await a.heard('look')).toEqual([w1, w2]);
    expect(await store.latchLook('n', w1)).toEqual({ count: 0, exists: true });
    await store.latchSet('n', 2, 5000);
    expect(await a.heard('look')).toEqual([]);
    await store.latchLook('n', w1);
    await store.latchSet('n', 1, 5000);
    expect(await a.heard('look')).toEqual([w1]);
    // Set anew, an id counts anew.
    expect(await store.latchDown('n', d1, 1, 5000)).toBe(0);
    expect(await a.heard('look')).toEqual([]);
  });

  it('vanishes so long after it was last set or counted', async () => {
    const a = new Client('mutex');
    await a.store.latchSet('n', 2, 1000);
    runtime.clock.advance(900);
    await a.store.latchDown('n', a.rid(), 1, 1000);
    runtime.clock.advance(999);
    expect(await a.store.latchLook('n', null)).toEqual({ count: 1, exists: true });
    runtime.clock.advance(1);
    expect(await a.store.latchLook('n', null)).toEqual({ count: 0, exists: false });
    expect(space.size).toBe(0);
  });
});

describe('in-process space', () => {
  it('keeps prefixes and kinds apart', async () => {
    const clients = [new Client('mutex', 'p'), new Client('mutex', 'q'), new Client('fair', 'p')];
    for (const client of clients) expect(await client.ask(client.rid())).toEqual(granted);
    const states = await clients[0]!.store.list(['mutex', 'fair', 'semaphore']);
    expect(states).toMatchObject([
      { kind: 'mutex', name: 'n', waiting: 0, waiters: [], limit: null, nowMs: T0 },
      { kind: 'fair', name: 'n' },
    ]);
    expect(new Set(clients.map(({ store }) => store.place)).size).toBe(2);
    expect(new Set(clients.map(({ store }) => store.client)).size).toBe(3);
  });

  it('gives two clients two names even when both draw the same', () => {
    const events = { wake: () => undefined, interrupted: () => undefined };
    const [one, two] = [1, 2].map(() => new MemoryLockStore(space, 'p', manualRuntime(), events));
    expect(one!.client).not.toBe(two!.client);
  });

  it('mints larger numbers though the wall clock steps back, and measures leases by the other', async () => {
    const a = new Client('mutex');
    const [a1, a2] = [a.rid(), a.rid()];
    const first = tokenOf(await a.ask(a1));
    expect(first).toBe(T0 * 1000);
    expect(a.store.clock).toEqual({ sentMs: 0, storeUs: 0 });
    runtime.clock.step(-3_600_000);
    runtime.clock.advance(0.25);
    expect(await a.ask(a2)).toEqual(queued(LEASE_MS));
    expect(a.store.clock).toEqual({ sentMs: 0.25, storeUs: 250 });
    runtime.clock.advance(LEASE_MS);
    expect(tokenOf(await a.ask(a2))).toBe(first + 2);
  });

  it('forgets what is over of names that nobody touches again', async () => {
    const a = new Client('mutex');
    for (let i = 0; i < 500; i++) {
      const rid = a.rid();
      await a.ask(rid, { name: `m${i}` });
      await a.ask(a.rid(), { name: `m${i}` });
      await a.ask(rid, { name: `r${i}`, kind: 'readwrite', mode: 'read' });
      await a.ask(rid, { name: `s${i}`, kind: 'semaphore' });
      await a.store.latchSet(`l${i}`, 1, 1000);
      await a.release(a.rid(), { ambiguous: true });
    }
    expect(space.size).toBe(2500);
    runtime.clock.advance(120_000);
    for (let i = 0; i < 2500; i++) await a.inspect();
    expect(space.size).toBe(0);
  });

  it('is the same for all of a process', () => {
    expect(processSpace()).toBe(processSpace());
    expect(processSpace(runtime.clock)).not.toBe(processSpace());
  });

  it('has no copies to confirm', async () => {
    const a = new Client('mutex');
    const request = { kind: 'mutex', name: 'n', mode: 'write', permits: 1, limit: 1, queue: false, ticket: 0 } as const;
    const rest = { rid: a.rid(), leaseMs: LEASE_MS, handOverMs: HAND_OVER_MS, info: '' };
    expect(await a.store.acquireReplicated({ ...request, ...rest }, 2, 100)).toEqual([granted, 0]);
  });

  it('fails commands after close, and tells nothing more; holds stay until their leases end', async () => {
    const a = new Client('mutex');
    const b = new Client('mutex');
    const [a1, a2, b1] = [a.rid(), a.rid(), b.rid()];
    await b.ask(b1);
    await a.ask(a1);
    const releasing = b.release(b1);
    await a.store.close();
    expect(await releasing).toBe('handed');
    expect(await a.heard()).toEqual([]);
    await expect(a.ask(a2)).rejects.toThrow(UnavailableError);
    await expect(a.store.listen({ kind: 'mutex', name: 'n' })).rejects.toThrow(UnavailableError);
    await expect(a.store.latchSet('n', 1, 1)).rejects.toThrow(UnavailableError);
    expect(await b.holders()).toEqual([a1]);
    runtime.clock.advance(HAND_OVER_MS);
    expect(await b.ask(b.rid())).toEqual(granted);
  });

  it('wakes after the command, never inside it', async () => {
    const [a, b] = [new Client('mutex'), new Client('mutex')];
    const [a1, b1] = [a.rid(), b.rid()];
    await a.ask(a1);
    await b.ask(b1);
    const releasing = a.release(a1);
    expect(b.told).toEqual([]);
    await releasing;
    expect(await b.heard()).toEqual([b1]);
  });
});

describe('WaitQueue', () => {
  it('serves by ticket, then by id, whoever joins and leaves', () => {
    // A plain list, sorted anew at every step, must agree.
    const queue = new WaitQueue();
    let model: { rid: string; ticket: number }[] = [];
    const { random } = runtime;
    for (let i = 0; i < 5000; i++) {
      const dice = random.fraction();
      if (dice < 0.55) {
        const rid = `c.${Math.floor(random.fraction() * 2000)}`;
        const ticket = random.fraction() < 0.8 ? i : Math.floor(random.fraction() * i);
        queue.join(0, rid, ticket);
        if (!model.some((one) => one.rid === rid)) model.push({ rid, ticket });
        model.sort((a, b) => a.ticket - b.ticket || (a.rid < b.rid ? -1 : 1));
      } else if (dice < 0.8) {
        expect(queue.first?.rid).toBe(model[0]?.rid);
        expect(queue.pop()?.rid).toBe(model.shift()?.rid);
      } else {
        const rid = model[Math.floor(random.fraction() * model.length)]?.rid ?? 'c.none';
        expect(queue.leave(rid)).toBe(model.length > 0);
        model = model.filter((one) => one.rid !== rid);
      }
      expect(queue.size).toBe(model.length);
    }
    expect([...queue].map(({ rid }) => rid)).toEqual(model.map(({ rid }) => rid));
    expect(queue.take(3).map(({ rid }) => rid)).toEqual(model.slice(0, 3).map(({ rid }) => rid));
    queue.prune(59_999);
    expect(queue.size).toBe(model.length);
    queue.prune(60_000);
    expect(queue.first).toBeUndefined();
  });
});
