import { type Cluster, Redis } from 'ioredis';
import { systemRuntime } from '../../src/base/runtime.ts';
import { LIKE_SHARDS, type LikeEvent, type Subject } from '../../src/model/like.ts';
import { LIKE_ENTRIES } from '../../src/model/like-entry.ts';
import { CountedLikes, type CountedLikesDependencies } from '../../src/social/likes/counted.ts';
import type { LikeStore, LikeStoreOptions } from '../../src/social/likes/redis/store.ts';
import { MemoryLikeLedger } from './like-ledger.ts';

/** One entry of a stream. */
export interface LikeEntry {
  readonly stream: string;
  readonly id: string;
  readonly events: LikeEvent[];
}

/** Deletes the records of settled pairs, of both generations. `store`: one whose rules keep none. */
export async function forgetSettled(store: LikeStore, shard: number, max = 500): Promise<void> {
  for (let turns = 0; turns < 2; ) {
    const turned = await store.turnOver(shard, max);
    if (turned === 'kept') return;
    if (turned === 'done') turns++;
  }
}

let made = 0;

/** Processes that share a Redis and a ledger, with the pipe in the test's hands: it says what is settled, when, and how often. */
export class LikeWorld {
  readonly ledger = new MemoryLikeLedger();
  readonly eye: Redis | Cluster;
  readonly prefix = `likes-${process.pid}-${Date.now()}-${++made}`;
  readonly processes: CountedLikes[] = [];
  readonly #target: string;
  readonly #locks = new Set<string>();
  /** What a shard that is being opened does with its stream. */
  drained: (shard: number) => Promise<boolean> = async (shard) => {
    await this.settleAll(shard);
    return true;
  };

  constructor(target: string, eye: Redis | Cluster = new Redis(target)) {
    this.#target = target;
    this.eye = eye;
    // Some tests stop its server.
    eye.on('error', () => undefined);
  }

  process(options: Partial<LikeStoreOptions> = {}, more: Partial<CountedLikesDependencies> = {}): CountedLikes {
    const likes = new CountedLikes(
      { target: this.#target, prefix: this.prefix, ...options },
      {
        runtime: systemRuntime(),
        ledger: this.ledger,
        probe: async () => undefined,
        lock: async (name) => {
          if (this.#locks.has(name)) return null;
          this.#locks.add(name);
          return { release: async () => this.#locks.delete(name) };
        },
        drained: (shard) => this.drained(shard),
        ...more,
      },
    );
    this.processes.push(likes);
    return likes;
  }

  /** The entries of all streams, the oldest first. */
  async entries(only?: number): Promise<LikeEntry[]> {
    const found: LikeEntry[] = [];
    for (let shard = 0; shard < LIKE_SHARDS; shard++) {
      if (only !== undefined && shard !== only) continue;
      const begin = `${this.prefix}:{likes:${shard}}`;
      for (const epoch of (await this.eye.smembers(`${begin}:epochs`)).map(Number).sort((a, b) => a - b)) {
        const stream = `${begin}:${epoch}:stream`;
        for (const [id, fields] of await this.eye.xrange(stream, '-', '+')) {
          found.push({ stream, id, events: LIKE_ENTRIES.decode(id, fields) });
        }
      }
    }
    return found;
  }

  /** Hands an entry over, as the pipe does; `keep`: it is not acknowledged, and comes again. */
  async settle({ stream, id, events }: LikeEntry, by = this.processes[0]!, keep = false): Promise<void> {
    const { undeliverable, told } = await by.settle(events);
    if (undeliverable.length > 0) throw undeliverable[0]!.error;
    await told;
    if (!keep) await this.eye.xdel(stream, id);
  }

  async settleAll(shard?: number): Promise<void> {
    for (const entry of await this.entries(shard)) await this.settle(entry);
  }

  /** Redis forgets everything of this shop. */
  async flush(): Promise<void> {
    const keys = await this.eye.keys(`${this.prefix}:*`);
    if (keys.length > 0) await this.eye.unlink(...keys);
  }

  /** A page as the ledger has it, read as HTTP does: `look` shows it. */
  async read(reader: string | null, subjects: readonly Subject[], by = this.processes[0]!) {
    const mark = by.mark();
    const counts = await this.ledger.likeCounts(subjects);
    const rows = await this.ledger.likeRows(subjects.map((subject) => ({ subject, user: reader ?? '' })));
    const page = subjects.map((subject, at) => {
      const { count = 0, atMs = 0 } = counts.get(subject) ?? {};
      return { subject, liked: rows[at]?.liked ?? false, count, asOfMs: atMs };
    });
    return { look: () => by.look(reader, page, mark) };
  }

  /** What a page shows. */
  async look(reader: string | null, subjects: readonly Subject[], by = this.processes[0]!) {
    return (await this.read(reader, subjects, by)).look();
  }

  async end(): Promise<void> {
    for (const each of this.processes) each.close();
    await this.flush().catch(() => undefined);
    this.eye.disconnect();
  }
}
