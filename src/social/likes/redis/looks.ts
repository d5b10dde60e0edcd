import type { RedisLink } from '../../../base/redis/link.ts';
import type { Runtime } from '../../../base/runtime.ts';
import { type Subject, shardOf } from '../../../model/like.ts';
import { type LikeLayout, pairField } from './layout.ts';
import { scriptNamed } from './scripts.ts';

/** Subjects of one call. */
const CALL_MAX = 500;
/** How often a read follows an epoch that changes under it. */
const TRIES_MAX = 4;

export interface LookRequest {
  readonly subject: Subject;
  /** Whose like it is; null: nobody asks. */
  readonly user: string | null;
}

/** What Redis knows. */
export type LookAnswer =
  /** Nobody can tell before the shard is opened anew. `lost`: Redis has nothing of it, so that what was not stored may be lost. */
  | 'stale'
  | 'lost'
  | {
      /** The epoch in force. */
      readonly epoch: number;
      /** The shard decides nothing more in this epoch. */
      readonly isShut: boolean;
      /** Null: the subject is not in Redis, so that nothing of it is unsettled. */
      readonly count: { readonly count: number; readonly exact: boolean; readonly atMs: number } | null;
      /** Null: the pair is not in Redis. A row that was read in this epoch, and not too long ago, is right. */
      readonly liked: boolean | null;
    };

interface Waiting {
  readonly request: LookRequest;
  readonly shard: number;
  tries: number;
  resolve(answer: LookAnswer): void;
  reject(error: unknown): void;
}

export interface LooksOn {
  readonly link: RedisLink;
  readonly layout: LikeLayout;
  readonly runtime: Runtime;
  readonly epochs: { of(shard: number): number; saw(shard: number, epoch: number): void };
}

/** Reads of one turn of the event loop are one call, whatever their shards; in a cluster one call for each shard. */
export class LikeLooks {
  readonly #on: LooksOn;
  #waiting: Waiting[] = [];

  constructor(on: LooksOn) {
    this.#on = on;
  }

  /** Each by itself: in a cluster one may fail while others are answered. */
  look(request: LookRequest): Promise<LookAnswer> {
    return new Promise((resolve, reject) => {
      this.#ask({ request, shard: shardOf(request.subject), tries: 0, resolve, reject });
    });
  }

  #ask(one: Waiting): void {
    this.#waiting.push(one);
    if (this.#waiting.length === 1) this.#on.runtime.timers.nextTurn(this.#flush);
  }

  readonly #flush = (): void => {
    const all = this.#waiting.sort((a, b) => a.shard - b.shard);
    this.#waiting = [];
    for (let from = 0; from < all.length; ) {
      let to = Math.min(from + CALL_MAX, all.length);
      if (this.#on.link.cluster) {
        const end = all.findIndex(({ shard }, at) => at > from && shard !== all[from]!.shard);
        if (end >= 0) to = Math.min(to, end);
      }
      const some = all.slice(from, to);
      this.#call(some).catch((error: unknown) => {
        for (const { reject } of some) reject(error);
      });
      from = to;
    }
  };

  async #call(some: readonly Waiting[]): Promise<void> {
    const { link, layout, epochs } = this.#on;
    const keys: string[] = [];
    const shards: number[] = [];
    const each: string[] = [];
    const askedIn: number[] = [];
    let last = -1;
    let epoch = 0;
    for (const { shard, request } of some) {
      if (shard !== last) {
        epoch = epochs.of(shard);
        const of = layout.shard(shard).of(epoch);
        keys.push(layout.shard(shard).head, of.subjects, ...of.pairs);
        shards.push(epoch, 0);
        last = shard;
      }
      shards[shards.length - 1]!++;
      askedIn.push(epoch);
      each.push(request.subject, request.user === null ? '' : pairField(request.subject, request.user));
    }
    const reply = await link.script(scriptNamed('look'), keys, [shards.length / 2, ...shards, ...each]);
    for (const [at, line] of String(reply).split('\n').entries()) {
      const one = some[at]!;
      if (line === '?') one.resolve('lost');
      else if (line.startsWith('!')) this.#moved(one, Number(line.slice(1)));
      else one.resolve(answerIn(line, askedIn[at]!));
    }
  }

  #moved(one: Waiting, inForce: number): void {
    const known = this.#on.epochs.of(one.shard);
    this.#on.epochs.saw(one.shard, inForce);
    if (inForce === 0 || inForce < known || ++one.tries >= TRIES_MAX) one.resolve('stale');
    else this.#ask(one);
  }
}

function answerIn(line: string, epoch: number): LookAnswer {
  const isShut = line.startsWith('~');
  const text = isShut ? line.slice(1) : line;
  if (text === '') return { epoch, isShut, count: null, liked: null };
  const [count, unsettled, atMs, liked] = text.split(' ') as [string, string, string, string];
  return {
    epoch,
    isShut,
    count: { count: Number(count), exact: unsettled === '0' && !isShut, atMs: Number(atMs) },
    liked: liked === '-' ? null : liked === '1',
  };
}
