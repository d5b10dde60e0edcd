import { messageOf, RetryableError, unavailable } from '../../base/errors.ts';
import { Grouped } from '../../base/grouped.ts';
import type { Runtime } from '../../base/runtime.ts';
import { each } from '../../base/sweep.ts';
import type { LikeBase, LikeLedger, LikeMode, LikeRow } from '../../ledger/port.ts';
import { ALL_SHARDS, LIKE_SHARDS, type LikeEvent, type Pair, type Subject, shardOf } from '../../model/like.ts';
import { LikeFiller } from './filler.ts';
import { asStored, type LikeOutcome, type Likes, type PageMark, type SettledLike, type ShownLike } from './likes.ts';
import { RecentDecisions } from './recent.ts';
import type { Brought } from './redis/decisions.ts';
import { LikeStore, type LikeStoreOptions } from './redis/store.ts';
import { LikeSettler, type SettledBatch } from './settle.ts';
import { LikeShards } from './shards.ts';
import { ShownLikes } from './shown.ts';
import { LikeUpkeep } from './upkeep.ts';

/** How often a like is asked about, moved to a new epoch or waits for a shard, before it is given up. */
const TRIES_MAX = 8;
/** Reads of the ledger under way: rows, and counts. */
const READS_AT_ONCE = 2;

export interface CountedLikesDependencies {
  readonly runtime: Runtime;
  readonly ledger: LikeLedger;
  /** Fails if the ledger can store nothing at all now. */
  readonly probe: () => Promise<unknown>;
  /** Tries to take a lock of the cluster; null: another process has it. */
  readonly lock: (name: string) => Promise<{ release(): Promise<unknown> } | null>;
  /** Waits, within a bound, until the pipe has carried what was decided in this shard; false: something is left. */
  readonly drained: (shard: number) => Promise<boolean>;
  /** How long a like waits for its shard to be opened. Default 2 s. */
  readonly openWaitMs?: number;
}

/**
 * Likes that Redis decides and counts, for a crowd: a batch of likes is one script, and the pipe carries them to the ledger, which stores
 * them in batches, too. See docs/internals/likes.md for the protocol.
 *
 *   set     Redis decides if it knows the pair, or if the subject's filter says that it was never liked. Otherwise it asks: this class
 *           reads the ledger, together with all who ask in the same moment, and calls again.
 *   look    shows what Redis knows; for the rest the ledger's values, which the caller brings (shown.ts).
 *   settle  the handler of the likes' pipe.
 *
 * Guaranteed while Redis keeps its data: `liked` and `changed` are exact, each like reaches the ledger. In any case: the ledger's counts
 * are those of its rows, `exact` is true only if the count is. Not guaranteed: a like that was answered and not stored yet when Redis
 * loses its data is lost.
 */
export class CountedLikes implements Likes {
  readonly upkeep: LikeUpkeep;
  readonly #runtime: Runtime;
  readonly #ledger: LikeLedger;
  readonly #store: LikeStore;
  readonly #shards: LikeShards;
  readonly #filler: LikeFiller;
  readonly #settler: LikeSettler;
  readonly #rows: Grouped<Pair, LikeRow | null>;
  readonly #counts: Grouped<Subject, LikeBase | null>;
  /** Counts being read, so that a subject that many like at once is read once. */
  readonly #loading = new Map<Subject, { readonly asked: Asked; readonly base: Promise<LikeBase | null> }>();
  readonly #shown: ShownLikes;
  readonly #recent: RecentDecisions;
  readonly #drained: CountedLikesDependencies['drained'];

  constructor(options: LikeStoreOptions, dependencies: CountedLikesDependencies) {
    const { runtime, ledger, lock, drained, probe, openWaitMs = 2000 } = dependencies;
    this.#runtime = runtime;
    this.#ledger = ledger;
    this.#recent = new RecentDecisions(runtime.clock);
    this.#drained = drained;
    const store = new LikeStore(options, runtime);
    this.#store = store;
    this.#shards = new LikeShards({ runtime, store, ledger, lock, drained, waitMs: openWaitMs });
    this.#filler = new LikeFiller({ runtime, store, ledger, lock });
    this.upkeep = new LikeUpkeep({ runtime, store, shards: this.#shards });
    const moved = (shard: number, epoch: number, mode: LikeMode): void => this.#moved(shard, epoch, mode);
    this.#settler = new LikeSettler({ ledger, probe, store, moved });
    this.#rows = new Grouped((pairs) => ledger.likeRows(pairs), runtime, { atOnce: READS_AT_ONCE });
    const countsOf = async (subjects: Subject[]): Promise<(LikeBase | null)[]> => {
      const found = await ledger.likeCounts(subjects);
      return subjects.map((subject) => found.get(subject) ?? null);
    };
    this.#counts = new Grouped(countsOf, runtime, { atOnce: READS_AT_ONCE });
    this.#shown = new ShownLikes({
      runtime,
      store,
      recent: this.#recent,
      row: (pair) => this.#rows.ask(pair),
      count: (subject) => this.#counts.ask(subject),
    });
  }

  /** Why likes cannot be decided here, for /readyz; null while they can. */
  get reason(): string | null {
    return this.#shards.barred;
  }

  /** Says in the ledger that likes are counted in Redis, and opens the shards that need it. */
  async start(): Promise<void> {
    await this.#ledger.setLikeMode('counted');
    await each(ALL_SHARDS, LIKE_SHARDS, (shard) => this.#shards.verify(shard));
  }

  async set(subject: Subject, user: string, liked: boolean): Promise<LikeOutcome> {
    const shard = shardOf(subject);
    let row: Brought<boolean | null> | undefined;
    let base: Brought<LikeBase> | undefined;
    for (let tries = 0; tries < TRIES_MAX; tries++) {
      const { barred } = this.#shards;
      if (barred !== null) throw unavailable(barred);
      const answer = await this.#store.decide({ subject, user, liked, row, base });
      switch (answer.is) {
        case 'changed':
        case 'same': {
          this.#recent.add(subject, user, answer.epoch, { liked, decidedMs: answer.decidedMs });
          if (answer.check) this.#check(subject, answer.epoch);
          const likes = { count: answer.count, exact: answer.exact, asOfMs: answer.atMs };
          return { outcome: 'ok', liked, changed: answer.is === 'changed', likes };
        }
        case 'ask':
          this.#filler.asked(subject, answer.count);
          row = await this.#row({ subject, user }, answer);
          break;
        case 'load': {
          // Read together: with rows in the ledger, Redis would ask for this one next.
          const [found, read] = await Promise.all([this.#load(subject, answer), this.#row({ subject, user }, answer)]);
          if (found === null) return { outcome: 'not_found' };
          base = found;
          row = read;
          break;
        }
        case 'full':
          throw new RetryableError('overloaded', 'too many likes are on their way to the ledger');
        case 'stale':
          await this.#shards.opened(shard);
          break;
        case 'moved':
          break;
      }
    }
    throw unavailable('the like could not be decided in time');
  }

  async #row(pair: Pair, asked: Asked): Promise<Brought<boolean | null>> {
    return { value: (await this.#rows.ask(pair))?.liked ?? null, askedMs: asked.askedMs, epoch: asked.epoch };
  }

  /** Null: the ledger has no such subject. Whoever joins a read takes over the time at which it was asked for. */
  async #load(subject: Subject, asked: Asked): Promise<Brought<LikeBase> | null> {
    let loading = this.#loading.get(subject);
    if (loading?.asked.epoch !== asked.epoch) {
      loading = { asked, base: this.#counts.ask(subject) };
      this.#loading.set(subject, loading);
    }
    try {
      const value = await loading.base;
      return value === null ? null : { value, askedMs: loading.asked.askedMs, epoch: loading.asked.epoch };
    } finally {
      if (this.#loading.get(subject) === loading) this.#loading.delete(subject);
    }
  }

  /** Finds out whether the subject still exists; Redis gave this task to one caller, and nobody waits for it. */
  #check(subject: Subject, epoch: number): void {
    this.#counts
      .ask(subject)
      .then((base) => this.#store.settle(shardOf(subject), epoch, 0, [], new Map([[subject, base]])))
      .catch((error: unknown) => this.#runtime.log.debug({ subject, reason: messageOf(error) }, 'not checked'));
  }

  mark(): PageMark {
    return this.#shown.mark();
  }

  async look(reader: string | null, page: readonly SettledLike[], mark: PageMark): Promise<ShownLike[]> {
    if (this.#shards.barred !== null) return asStored(page);
    return await this.#shown.look(reader, page, mark);
  }

  /** Since the start: posts and comments that were shown as they are stored, because Redis did not answer for them. */
  get asStored(): number {
    return this.#shown.asStored;
  }

  forget(subject: Subject): Promise<void> {
    return this.#store.forget(subject);
  }

  /** For the likes' pipe: stores a batch of one shard. Rejects if nothing can be stored now. */
  settle(batch: readonly LikeEvent[]): Promise<SettledBatch> {
    return this.#settler.settle(batch);
  }

  /** For an operator who gives up an event that the ledger cannot take: the pair and its count are the ledger's from now on. */
  async giveUp(event: LikeEvent): Promise<void> {
    const { subject, user } = event;
    const row = this.#rows.ask({ subject, user }).catch(ofNobody);
    const base = this.#counts.ask(subject).catch(ofNobody);
    const liked = (await row)?.liked ?? false;
    // A pair that was decided again is what was decided last.
    if (await this.#store.giveUp(event, liked, await base)) this.#recent.forget(subject, user);
  }

  /**
   * For an operator who gives up an event: waits until nothing that was decided before it is on its way, so that it is stored or a dead
   * letter. Fails with `unavailable` if that takes too long.
   */
  async olderArrived(event: LikeEvent): Promise<void> {
    if ((await this.#store.isAhead(event)) && !(await this.#drained(shardOf(event.subject)))) throw onTheirWay();
  }

  /**
   * Opens a shard anew, with what the ledger has. For an operator who gives up likes that nobody can read: Redis would count them for ever.
   * Does nothing if their epoch is over. Fails with `unavailable` while other likes are on their way, which would be lost.
   */
  async reopen(shard: number, epoch: number): Promise<void> {
    if ((await this.#store.epochOf(shard)) !== epoch) return;
    if (!(await this.#drained(shard))) throw onTheirWay();
    await this.#shards.opened(shard, epoch);
  }

  #moved(shard: number, epoch: number, mode: LikeMode): void {
    if (mode === 'counted') {
      void this.#shards.open(shard, epoch - 1).catch(() => undefined);
      return;
    }
    this.#shards.bar(shard, { epoch, mode });
  }

  close(): void {
    this.#shards.close();
    this.#filler.close();
    this.#store.close();
  }
}

/** The ledger cannot even be asked about what is no name, or no id: there is no row of it. */
function ofNobody(error: unknown): null {
  if (error instanceof RetryableError) throw error;
  return null;
}

function onTheirWay(): RetryableError {
  return unavailable('likes of this shard are on their way: try again when they are stored');
}

/** When Redis asked for what is read, and in which epoch. */
type Asked = Pick<Brought<unknown>, 'askedMs' | 'epoch'>;
