import { InvariantError, RetryableError, unavailable } from '../../../base/errors.ts';
import { type RedisLink, RedisUnavailableError } from '../../../base/redis/link.ts';
import { type Asker, bulk } from '../../../base/redis/sent-script.ts';
import type { Runtime } from '../../../base/runtime.ts';
import { LIKE_SHARDS, type Pair, type Subject, shardOf } from '../../../model/like.ts';
import type { LikeLayout } from './layout.ts';
import type { LikeRules } from './rules.ts';
import { scriptNamed } from './scripts.ts';
import { userMark } from './user-mark.ts';

/** A call holds Redis for as long as it runs; this many likes take about a millisecond. At most 128: see `counts` in decide.lua. */
const BATCH_MAX = 128;
/** Likes of a shard that wait for a call. */
const WAITING_MAX = 1024;
/** Calls of a shard under way. Each has a slot, in which Redis keeps its answers. */
const SLOTS = 4;
/** How long Redis keeps them: longer than a call is sent again. */
const ANSWERS_MS = 30_000;
/** Between two tries of a call whose reply was lost. */
const RETRY_EVERY_MS = 50;
/** How long we trust to know Redis' clock: those of two machines may drift apart by half a millisecond a second. */
const CLOCK_MS_MAX = 60_000;
/** The error of a server that has reached maxmemory. */
const FULL = /\bOOM\b/;

/** What the ledger has, read after Redis had asked for it at `askedMs`, in this epoch. */
export interface Brought<T> {
  readonly value: T;
  readonly askedMs: number;
  readonly epoch: number;
}

export interface LikeRequest extends Pair {
  readonly liked: boolean;
  readonly row?: Brought<boolean | null> | undefined;
  readonly base?: Brought<{ readonly count: number; readonly rev: number; readonly atMs: number }> | undefined;
}

export type LikeAnswer =
  | {
      readonly is: 'changed' | 'same';
      readonly count: number;
      /** Nothing of this subject is unsettled. */
      readonly exact: boolean;
      readonly atMs: number;
      /** The caller is to find out whether the subject still exists. */
      readonly check: boolean;
      readonly epoch: number;
      /** When it was decided, by Redis' clock. */
      readonly decidedMs: number;
    }
  /** Bring the row, or the subject and the row. */
  | { readonly is: 'ask' | 'load'; readonly askedMs: number; readonly epoch: number; readonly count: number }
  | { readonly is: 'full' }
  /** Nothing was decided: the shard must be opened, or (`moved`) it was, or the call came too late, and the caller asks again. */
  | { readonly is: 'stale' | 'moved' };

interface Waiting {
  readonly request: LikeRequest;
  resolve(answer: LikeAnswer): void;
  reject(error: unknown): void;
}

/** What we know of the clock of the server that has a shard. */
interface ServerClock {
  /** What it is ahead of our monotonic clock, at least; and when we learned that. */
  aheadMs: number;
  learnedMs: number;
}

interface Lane {
  readonly shard: number;
  readonly clock: ServerClock;
  readonly waiting: Waiting[];
  isDue: boolean;
  /** The call in each slot, and the number of the last one. */
  readonly calls: (Call | null)[];
  readonly numbers: number[];
  /** The first part of every call, for one epoch. */
  epoch: number;
  keys: string;
  slotKeys: string[];
  head: string;
  /** Why likes fail at once: a call is being sent again. */
  out: string | null;
}

export interface DecisionsOn {
  readonly link: RedisLink;
  readonly layout: LikeLayout;
  readonly runtime: Runtime;
  readonly rules: LikeRules;
  /** The epoch of a shard that is in force, as far as we know, and how we learn of it. */
  readonly epochs: { of(shard: number): number; saw(shard: number, epoch: number): void };
  /** A name that no other process has. */
  readonly caller: string;
  /** For how long a call whose reply was lost is sent again, and how long after its first try Redis may still decide it. */
  readonly retryMs: number;
}

/**
 * Likes of one shard that arrive in the same turn of the event loop go to Redis in one call. At most four calls of a shard are under
 * way; likes that arrive meanwhile wait for the next ones, up to a bound, and further ones are refused.
 *
 * A call whose reply was lost is sent again, with its number: Redis gives the answers of the first time. But not into another epoch:
 * the first try may have been decided in the old one.
 *
 * A call says until when it may be decided, by Redis' clock, which every answer brings. A like that has failed here is not decided later,
 * when its user may have been answered elsewhere. Of a call whose time is over, or whose sender does not know the clock yet, nothing is
 * decided; the answer brings the clock, and the caller asks again. If Redis' clock is set back meanwhile, a call may be decided later by
 * that much.
 */
export class LikeDecisions {
  readonly #on: DecisionsOn;
  readonly #lanes: Lane[];
  #closed = false;

  constructor(on: DecisionsOn) {
    this.#on = on;
    const unknown = (): ServerClock => ({ aheadMs: 0, learnedMs: Number.NEGATIVE_INFINITY });
    const ofAll = unknown();
    this.#lanes = Array.from({ length: LIKE_SHARDS }, (_, shard) => ({
      shard,
      clock: on.link.cluster ? unknown() : ofAll,
      waiting: [],
      isDue: false,
      calls: Array.from({ length: SLOTS }, () => null),
      numbers: Array.from({ length: SLOTS }, () => 0),
      epoch: -1,
      keys: '',
      slotKeys: [],
      head: '',
      out: null,
    }));
  }

  decide(request: LikeRequest): Promise<LikeAnswer> {
    return new Promise((resolve, reject) => {
      const lane = this.#lanes[shardOf(request.subject)]!;
      if (this.#closed) return reject(unavailable('likes are closed'));
      if (lane.out !== null) return reject(unavailable(lane.out));
      if (lane.waiting.length >= WAITING_MAX) return reject(overloaded('too many likes are waiting for Redis'));
      lane.waiting.push({ request, resolve, reject });
      this.#schedule(lane);
    });
  }

  #schedule(lane: Lane): void {
    if (lane.isDue || lane.waiting.length === 0 || !lane.calls.includes(null)) return;
    lane.isDue = true;
    const flush = (): void => {
      lane.isDue = false;
      while (lane.waiting.length > 0 && lane.calls.includes(null)) this.#next(lane);
    };
    // As admissions do: with nothing under way there is no reply to wait for, only the other callers of this turn.
    if (this.#on.link.idle) process.nextTick(flush);
    else this.#on.runtime.timers.nextTurn(flush);
  }

  #next(lane: Lane): void {
    const { epochs, link, runtime, retryMs } = this.#on;
    const slot = lane.calls.indexOf(null);
    const epoch = epochs.of(lane.shard);
    if (lane.epoch !== epoch) this.#frame(lane, epoch);
    const likes = lane.waiting.splice(0, BATCH_MAX);
    lane.numbers[slot]!++;
    const sentMs = runtime.clock.monotonic();
    const { aheadMs, learnedMs } = lane.clock;
    // Not above what Redis' clock says when the likes fail here: they do not before they were tried for `retryMs`.
    const notAfterMs = sentMs - learnedMs > CLOCK_MS_MAX ? 0 : Math.floor(sentMs + aheadMs + retryMs);
    const sent = { number: lane.numbers[slot]!, notAfterMs, sentMs, breaks: link.breaks };
    const call = new Call(this, lane, slot, epoch, likes, sent);
    lane.calls[slot] = call;
    this.#send(call);
  }

  #send(call: Call): void {
    const { link, runtime } = this.#on;
    link.send(scriptNamed('decide'), KEYS, KEYS + call.parts, call.wire, runtime.clock.monotonic(), call);
  }

  #frame(lane: Lane, epoch: number): void {
    const { layout, rules, caller } = this.#on;
    const keys = layout.shard(lane.shard);
    const of = keys.of(epoch);
    // Another server may have the shard, with another clock.
    if (lane.epoch > 0) lane.clock.learnedMs = Number.NEGATIVE_INFINITY;
    lane.epoch = epoch;
    lane.keys = [keys.head, of.stream, of.subjects, ...of.pairs].map(bulk).join('');
    lane.slotKeys = Array.from({ length: SLOTS }, (_, slot) => bulk(of.answers(caller, slot)));
    const { unsettledMax, subjectsMax, filterUsersMax, askedMsMax, checkMs, checkMsMax } = rules;
    const numbers = [unsettledMax, subjectsMax, filterUsersMax, askedMsMax, checkMs, checkMsMax, ANSWERS_MS].map(
      String,
    );
    const message = `${layout.channel(lane.shard)} ${epoch}`;
    lane.head = [String(epoch), of.filters, ...numbers, layout.wake, message].map(bulk).join('');
  }

  /** Called by calls. */
  answered(call: Call, reply: unknown): void {
    const { epochs } = this.#on;
    const { lane, likes } = call;
    lane.out = null;
    if (typeof reply !== 'number') {
      const text = String(reply);
      // The answer to a call that was sent again may be that of the first time.
      if (!call.isUncertain) this.#learn(call, Number(text.slice(0, text.indexOf('\n'))));
      this.#end(call);
      call.read(text);
      return;
    }
    const isLate = reply < -1;
    if (isLate) this.#learn(call, -reply);
    this.#end(call);
    if (isLate && !call.isUncertain) {
      for (const { resolve } of likes) resolve({ is: 'moved' });
      return;
    }
    const isCertain = !call.isUncertain && call.breaks === this.#on.link.breaks;
    if (reply < 0 || !isCertain) {
      // The epoch that was in force before may have decided it.
      for (const { reject } of likes) reject(unavailable('the likes were lost with their answer'));
      return;
    }
    const known = epochs.of(lane.shard);
    epochs.saw(lane.shard, reply);
    // A lower epoch than one that was seen: the server came back with an old copy.
    const answer: LikeAnswer = { is: reply === 0 || reply < known ? 'stale' : 'moved' };
    for (const { resolve } of likes) resolve(answer);
  }

  /** Redis' clock was this at some moment after the call was sent and before now. What we know already may be closer to it. */
  #learn({ lane: { clock }, sentMs }: Call, redisMs: number): void {
    const nowMs = this.#on.runtime.clock.monotonic();
    const [least, most] = [redisMs - nowMs, redisMs + 1 - sentMs];
    const isKnown = clock.aheadMs >= least && clock.aheadMs <= most && nowMs - clock.learnedMs <= CLOCK_MS_MAX / 2;
    if (!isKnown) Object.assign(clock, { aheadMs: least, learnedMs: nowMs });
  }

  /** Called by calls. */
  failed(call: Call, error: unknown): void {
    const { runtime, retryMs } = this.#on;
    const { lane, likes } = call;
    const isLost = error instanceof RedisUnavailableError && !this.#closed;
    if (isLost && !FULL.test(error.message)) {
      call.isUncertain = true;
      if (call.sentMs + retryMs > runtime.clock.monotonic()) {
        lane.out = 'Redis does not answer';
        for (const { reject } of lane.waiting.splice(0)) reject(unavailable(lane.out));
        runtime.timers.after(RETRY_EVERY_MS, () => this.#send(call));
        return;
      }
    }
    lane.out = null;
    this.#end(call);
    const isFull = isLost && FULL.test(error.message) && !call.isUncertain;
    const reason = isFull ? overloaded('Redis is full') : isLost ? unavailable('Redis does not answer', error) : error;
    for (const { reject } of likes) reject(reason);
  }

  #end(call: Call): void {
    call.lane.calls[call.slot] = null;
    this.#schedule(call.lane);
  }

  close(): void {
    this.#closed = true;
    for (const { waiting, calls } of this.#lanes) {
      const all = [...waiting.splice(0), ...calls.flatMap((call) => call?.likes ?? [])];
      for (const { reject } of all) reject(unavailable('likes are closed'));
    }
  }
}

const KEYS = 6;
const HEAD_ARGS = 11;
const NOTHING = bulk('');
const CODES = { c: 'changed', u: 'same', a: 'ask', l: 'load', f: 'full' } as const;

interface Sent {
  readonly number: number;
  /** By Redis' clock; 0: it is not known. */
  readonly notAfterMs: number;
  /** By ours. */
  readonly sentMs: number;
  readonly breaks: number;
}

/** Likes that are sent in one call, and their wire format. */
class Call implements Asker {
  readonly lane: Lane;
  readonly slot: number;
  readonly epoch: number;
  /** By subject. */
  readonly likes: readonly Waiting[];
  readonly sentMs: number;
  readonly breaks: number;
  readonly wire: string;
  readonly parts: number;
  /** A reply was lost: it may have been decided already. */
  isUncertain = false;
  readonly #decisions: LikeDecisions;
  /** How many likes each subject has. */
  readonly #counts: number[];

  constructor(
    decisions: LikeDecisions,
    lane: Lane,
    slot: number,
    epoch: number,
    likes: readonly Waiting[],
    { number, notAfterMs, sentMs, breaks }: Sent,
  ) {
    this.#decisions = decisions;
    this.lane = lane;
    this.slot = slot;
    this.epoch = epoch;
    this.sentMs = sentMs;
    this.breaks = breaks;
    const subjects = new Map<Subject, Waiting[]>();
    for (const like of likes) {
      const of = subjects.get(like.request.subject);
      if (of === undefined) subjects.set(like.request.subject, [like]);
      else of.push(like);
    }
    this.likes = subjects.size === 1 ? likes : [...subjects.values()].flat();
    this.#counts = Array.from(subjects.values(), ({ length }) => length);
    let named = '';
    let counts = '';
    let marks = '';
    let wants = '';
    let rows = '';
    let hasRows = false;
    let users = '';
    for (const [subject, some] of subjects) {
      let newest: LikeRequest['base'];
      for (const { request } of some) {
        const { user, liked, row, base } = request;
        // What was read in another epoch says nothing about this one.
        if (base?.epoch === epoch && !(newest && newest.askedMs > base.askedMs)) newest = base;
        marks += userMark(user);
        wants += liked ? '1' : '0';
        if (row?.epoch === epoch) {
          hasRows = true;
          rows += `${row.value ? 1 : 0}${row.askedMs} `;
        } else rows += '- ';
        users += bulk(user);
      }
      named += bulk(subject);
      if (newest === undefined) named += NOTHING;
      else named += bulk(`${newest.value.count} ${newest.value.rev} ${newest.value.atMs} ${newest.askedMs}`);
      counts += String.fromCharCode(some.length - 1);
    }
    const sizes = [number, notAfterMs, likes.length, subjects.size].map((size) => bulk(String(size))).join('');
    const each = bulk(counts) + bulk(marks) + bulk(wants) + bulk(hasRows ? rows : '');
    this.wire = lane.keys + lane.slotKeys[slot]! + lane.head + sizes + named + each + users;
    this.parts = HEAD_ARGS + 4 + 2 * subjects.size + 4 + likes.length;
  }

  answered(reply: unknown): void {
    this.#decisions.answered(this, reply);
  }

  failed(error: unknown): void {
    this.#decisions.failed(this, error);
  }

  read(reply: string): void {
    const lines = reply.split('\n');
    const codes = lines[this.#counts.length + 1];
    if (codes?.length !== this.likes.length) {
      const error = new InvariantError('Redis gave no answer to some likes');
      for (const { reject } of this.likes) reject(error);
      return;
    }
    const nowMs = Number(lines[0]);
    const { epoch } = this;
    let at = 0;
    for (const [place, likes] of this.#counts.entries()) {
      const [count = 0, unsettled = 0, atMs = 0, check = 0] = lines[place + 1]!.split(' ').map(Number);
      for (const end = at + likes; at < end; at++) {
        const is = CODES[codes[at] as keyof typeof CODES];
        const { resolve } = this.likes[at]!;
        if (is === 'full') resolve({ is });
        else if (is === 'ask' || is === 'load') resolve({ is, askedMs: nowMs, epoch, count });
        else resolve({ is, count, exact: unsettled === 0, atMs, check: check === 1, epoch, decidedMs: nowMs });
      }
    }
  }
}

function overloaded(reason: string): RetryableError {
  return new RetryableError('overloaded', reason);
}
