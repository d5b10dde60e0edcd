import { messageOf, RetryableError, unavailable } from '../../base/errors.ts';
import { halved } from '../../base/halved.ts';
import type { LikeLedger, LikeMode, SettledLikes } from '../../ledger/port.ts';
import { type LikeEvent, type Subject, shardOf } from '../../model/like.ts';
import type { LikeStore } from './redis/store.ts';
import type { CommittedCount } from './redis/told.ts';

/** What became of a batch of the pipe: `told` resolves when Redis knows, too, and only then is the batch decided. */
export interface SettledBatch {
  readonly undeliverable: readonly { readonly message: LikeEvent; readonly error: Error }[];
  readonly told: Promise<void>;
}

export interface SettlerDependencies {
  readonly ledger: Pick<LikeLedger, 'settleLikes'>;
  /** Fails if the ledger can store nothing at all now. */
  readonly probe: () => Promise<unknown>;
  readonly store: Pick<LikeStore, 'settle'>;
  /** The ledger has another epoch than these events, or likes are decided in another way now. */
  readonly moved: (shard: number, epoch: number, mode: LikeMode) => void;
}

/**
 * Carries decided likes from the pipe to the ledger, and back to Redis: commit, then Redis, then acknowledge. All of it may be done
 * twice, late, or by several processes.
 *
 * A ledger that is out rejects the batch, and the pipe brings it again. A batch that the ledger cannot take as it is, is halved until the
 * events that cannot be stored are alone.
 */
export class LikeSettler {
  readonly #on: SettlerDependencies;

  constructor(dependencies: SettlerDependencies) {
    this.#on = dependencies;
  }

  /** A batch of one shard. */
  async settle(batch: readonly LikeEvent[]): Promise<SettledBatch> {
    const undeliverable: { message: LikeEvent; error: Error }[] = [];
    const tells: Promise<void>[] = [];
    const store = async (part: readonly LikeEvent[]): Promise<void> => {
      const shard = shardOf(part[0]!.subject);
      const telling = this.#tell(shard, part, await this.#on.ledger.settleLikes(shard, part));
      // Whoever awaits `told` hears of its failure; a failure before that must not count as unhandled.
      telling.catch(() => undefined);
      tells.push(telling);
    };
    await halved(batch, store, async (message, error) => {
      undeliverable.push({ message, error: await this.#alone(error) });
    });
    return { undeliverable, told: Promise.all(tells).then(() => undefined) };
  }

  /** A ledger that can store nothing at all is no reason to give up on an event: the outage may only look like its fault. */
  async #alone(error: unknown): Promise<Error> {
    await this.#on.probe().catch((out: unknown) => {
      throw out instanceof RetryableError ? out : unavailable(messageOf(out), out);
    });
    return error instanceof Error ? error : new Error(messageOf(error));
  }

  async #tell(shard: number, batch: readonly LikeEvent[], { bases, epoch, mode }: SettledLikes): Promise<void> {
    const { store, moved } = this.#on;
    // Streams of several epochs may be read at the same time.
    const epochs = new Map<number, LikeEvent[]>();
    for (const event of batch) {
      const some = epochs.get(event.epoch);
      if (some) some.push(event);
      else epochs.set(event.epoch, [event]);
    }
    for (const [of, events] of epochs) {
      const counts = new Map<Subject, CommittedCount>();
      for (const { subject } of events) counts.set(subject, bases.get(subject) ?? null);
      await store.settle(shard, of, epoch, events, counts);
    }
    if (mode !== 'counted' || batch.some((event) => event.epoch < epoch)) moved(shard, epoch, mode);
  }
}
