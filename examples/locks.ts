/**
 * The lock toolkit on its own: inside this process, or on Redis.
 *
 *     npm run example locks
 *     REDIS_URL=redis://127.0.0.1:6379 npm run example locks
 */
import { randomUUID } from 'node:crypto';
import { DatabaseSync } from 'node:sqlite';
import { setTimeout as sleep } from 'node:timers/promises';
// In your program: import { createLocks } from 'doorbuster/locks';
import { assertFenced, createLocks, fenceSql, StaleFenceError } from '../src/locks/index.ts';

const redis = process.env.REDIS_URL;
const settings = redis ? { redis } : {};
const locks = createLocks(settings);
// Each run uses its own names: on a shared Redis another run may be active.
const run = randomUUID();

// A mutex and the row it guards. The fence column keeps the largest token that has written so far.
const db = new DatabaseSync(':memory:');
db.exec('CREATE TABLE orders (id INTEGER PRIMARY KEY, status TEXT NOT NULL, fence INTEGER NOT NULL DEFAULT 0)');
db.exec("INSERT INTO orders (id, status) VALUES (1, 'reserved')");

function write(status: string, token: bigint): void {
  const { set, where, value } = fenceSql(token);
  const { changes } = db
    .prepare(`UPDATE orders SET status = ?, ${set} WHERE id = 1 AND ${where}`)
    .run(status, value, value);
  assertFenced(changes, 'order 1');
}

const order = locks.mutex(`${run}:order:1`);
// A fixed lease, and work that takes longer. The signal aborts before anyone else can get the lock.
const late = await order.acquire({ lease: 100 });
await sleep(150);
console.log(`mutex: held: ${late.held}, signal: ${late.signal.reason.code}, ${late.signal.reason.reason}`);
await order.run(({ token }) => write('paid', token));
try {
  // This holder ignored the signal and writes anyway: only the fence can stop it.
  write('cancelled', late.token);
} catch (error) {
  if (!(error instanceof StaleFenceError)) throw error;
  const { status } = db.prepare('SELECT status FROM orders WHERE id = 1').get() as { status: string };
  console.log(`fence: the late write is refused (${error.code}), the order stays ${status}`);
}

// Try without waiting, or wait at most a given time.
{
  await using held = await order.acquire();
  const other = await order.tryAcquire();
  const waited = await order.acquire({ wait: 50 }).catch((error) => error.code);
  console.log(`held: ${held.held}; a second try: ${other}, ${waited}`);
}

// Many readers, or one writer.
const prices = locks.readWrite(`${run}:prices`);
let reading = 0;
let together = 0;
const read = (): Promise<void> =>
  prices.read.run(async () => {
    together = Math.max(together, ++reading);
    await sleep(20);
    reading--;
  });
await Promise.all([read(), read(), read()]);
await prices.write.run(() => console.log(`read-write: ${together} readers at once, then a writer beside ${reading}`));

// At most two at a time.
const provider = locks.semaphore(`${run}:provider`, { permits: 2 });
let calling = 0;
let most = 0;
const call = (): Promise<void> =>
  provider.run(async () => {
    most = Math.max(most, ++calling);
    await sleep(20);
    calling--;
  });
await Promise.all([call(), call(), call(), call(), call()]);
console.log(`semaphore: 5 calls, ${most} at a time`);

// Runs once in the cluster; every caller gets the result.
let built = 0;
const report = (): Promise<{ sold: number }> =>
  locks.once(`${run}:report`, () => ({ sold: 100 * ++built }), { keep: 1000 });
const reports = await Promise.all([report(), report(), report()]);
console.log(`once: built ${built} time, all have ${JSON.stringify(reports[2])}`);

// Several locks at once, always taken in the same order: opposite transfers cannot deadlock.
const accounts = { alice: 100, bob: 100 };
const transfer = (from: 'alice' | 'bob', to: 'alice' | 'bob', amount: number): Promise<void> =>
  locks.multi([`${run}:${from}`, `${run}:${to}`]).run(async () => {
    const [source, target] = [accounts[from], accounts[to]];
    await sleep(1);
    accounts[from] = source - amount;
    accounts[to] = target + amount;
  });
await Promise.all([transfer('alice', 'bob', 30), transfer('bob', 'alice', 10), transfer('alice', 'bob', 5)]);
console.log(`multi: alice ${accounts.alice}, bob ${accounts.bob}`);

// One instance leads. Here a second `createLocks` stands in for another process.
const elsewhere = createLocks(settings);
elsewhere.on('skipped', ({ reason }) => console.log(`leader: the second instance waits, ${reason}`));
const lead = (who: string) => async (context: { signal: AbortSignal }) => {
  console.log(`leader: ${who} leads`);
  await aborted(context.signal);
};
const first = locks.leader(`${run}:rebuild`, lead('the first'));
await until(() => first.isLeader);
const second = elsewhere.leader(`${run}:rebuild`, lead('the second'));
await sleep(100);
await first.stop();
await until(() => second.isLeader);

await elsewhere.close();
await locks.close();

async function aborted(signal: AbortSignal): Promise<void> {
  if (!signal.aborted) await new Promise((resolve) => signal.addEventListener('abort', resolve, { once: true }));
}

async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await sleep(5);
}
