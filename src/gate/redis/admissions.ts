import { TerminalError, unavailable } from '../../base/errors.ts';
import { isId } from '../../base/ids.ts';
import type { EpochKeys, Layout } from '../../base/redis/layout.ts';
import { detailOf, type RedisLink, RedisUnavailableError, UNREACHED } from '../../base/redis/link.ts';
import type { Script } from '../../base/redis/scripts.ts';
import { type Asker, bulk } from '../../base/redis/sent-script.ts';
import type { Runtime } from '../../base/runtime.ts';
import { type AdmitRequest, isSound, NotAdmittedError, type Verdict } from '../port.ts';
import type { Breakers } from './breakers.ts';
import type { Epochs } from './epochs.ts';
import type { Room } from './room.ts';

/** How much goes in one call, as `BatchKind.weightOf` weighs it: a call holds Redis for as long as it runs. */
export const BATCH_MAX = 256;
/** One is being decided, one is on its way to Redis, one on its way back, one is being written. */
const IN_FLIGHT_MAX = 4;
/** How often a batch follows a gate that is rebuilt under it. */
const EPOCHS_MAX = 8;

/** The error of a server that has reached maxmemory. */
const FULL = /\bOOM\b/;

const HEAD_ARGS = 5;

export interface Admission {
  readonly request: AdmitRequest;
  resolve(verdict: Verdict): void;
  reject(error: unknown): void;
}

/** Orders that one script decides, and how they are written for it. */
export interface BatchKind {
  readonly script: () => Script;
  /** The keys of the epoch, behind the gate's. */
  readonly keys: (of: EpochKeys) => string[];
  /** Of BATCH_MAX, and no more than that. */
  weightOf(request: AdmitRequest): number;
  /** What may wait for the next calls, as `weightOf` weighs it: at least BATCH_MAX. */
  readonly waitingMax: number;
  encode(entries: readonly Admission[]): EncodedBatch;
}

export interface EncodedBatch {
  /** Arguments behind those that every call begins with, each as `bulk` writes it, and their number. */
  readonly wire: string;
  readonly parts: number;
  /** Gives each order its verdict. */
  read(reply: string, on: ReadOn): void;
}

export interface ReadOn {
  /** The epoch that the batch was decided in. */
  readonly epoch: number;
  /** The process that asked. */
  readonly process: string;
  /** The reply accounts for every copy of the batch that was sent. */
  readonly certain: boolean;
}

/** The orders of one sale. */
interface SaleQueue {
  readonly saleId: string;
  waiting: Admission[];
  /** What they weigh together. */
  weight: number;
  /**
   * Batches under way, at most IN_FLIGHT_MAX. Not a Set: V8 allocates a new table every few additions, and the old tables keep
   * each other and their contents alive longer than the young generation.
   */
  readonly inFlight: Batch[];
  /** The part that every call begins with, for one epoch. */
  epoch: number;
  keys: string;
  head: string;
}

export interface AdmissionsOn {
  readonly link: RedisLink;
  readonly layout: Layout;
  readonly runtime: Runtime;
  readonly breakers: Breakers;
  readonly room: Room;
  readonly epochs: Epochs;
  readonly pipeMax: number;
  readonly process: string;
  readonly retryMs: number;
}

const STALE: Verdict = { outcome: 'stale' };

/**
 * Orders of one sale that arrive in the same turn of the event loop go to Redis in one call; a lone one is not delayed. At most
 * four calls of a sale are under way. Orders that arrive meanwhile gather for the next calls, up to a bound; further ones are
 * refused. That bounds what a slow Redis makes this process keep in memory.
 *
 * A call whose reply was lost is sent again: it is idempotent by order id. But not into another epoch: the message of the first
 * try may be in the old stream, and the ledger would meet one order id with two contents.
 */
export class Admissions {
  readonly #on: AdmissionsOn;
  readonly #kind: BatchKind;
  readonly #script: Script;
  readonly #lanes = new Map<string, SaleQueue>();
  readonly #due = new Set<SaleQueue>();
  /** Orders whose verdict was read in this turn of the event loop, and replies that wait for the next turn. */
  #readInTurn = 0;
  readonly #unread: { batch: Batch; reply: unknown }[] = [];
  #keysCount = 0;
  #closed = false;

  constructor(on: AdmissionsOn, kind: BatchKind) {
    this.#on = on;
    this.#kind = kind;
    this.#script = kind.script();
  }

  admit(request: AdmitRequest): Promise<Verdict> {
    return new Promise((resolve, reject) => {
      const { saleId, signal } = request;
      if (this.#closed) return reject(notSent('the gate is closed'));
      if (signal?.aborted) return reject(aborted());
      const reason = this.#on.breakers.reasonOf(saleId);
      if (reason !== null) return reject(notSent(reason));
      if (!isName(request.buyer) || (request.key !== null && !isName(request.key))) {
        return reject(new TerminalError('internal', 'not the name of a buyer or key'));
      }
      // One that its script cannot read would fail the others of its batch.
      if (!isSound(request)) return reject(new TerminalError('internal', 'an order for nothing'));
      let lane = this.#lanes.get(saleId);
      if (lane === undefined) {
        // A sale id becomes part of key names: anything that cannot be one must not reach Redis.
        if (!isId(saleId)) return resolve(STALE);
        lane = { saleId, waiting: [], weight: 0, inFlight: [], epoch: -1, keys: '', head: '' };
        this.#lanes.set(saleId, lane);
      }
      const weight = this.#kind.weightOf(request);
      if (lane.weight > 0 && lane.weight + weight > BATCH_MAX) {
        if (lane.inFlight.length < IN_FLIGHT_MAX) {
          this.#next(lane);
          // The callers of all waiting orders may have left, and the lane with them.
          this.#lanes.set(saleId, lane);
        } else if (lane.weight + weight > this.#kind.waitingMax) {
          return reject(overloaded('too many orders are waiting for the gate'));
        }
      }
      lane.waiting.push({ request, resolve, reject });
      lane.weight += weight;
      if (lane.inFlight.length < IN_FLIGHT_MAX) this.#schedule(lane);
    });
  }

  #schedule(lane: SaleQueue): void {
    const { link, runtime } = this.#on;
    if (this.#due.has(lane)) return;
    this.#due.add(lane);
    if (this.#due.size > 1) return;
    link.expect();
    // With nothing under way there is no reply to wait for, only the other callers that the same reply has woken. A tick that
    // is requested in a promise callback runs after all of their callbacks.
    if (link.idle) process.nextTick(this.#flush);
    else runtime.timers.nextTurn(this.#flush);
  }

  readonly #flush = (): void => {
    const due = [...this.#due];
    this.#due.clear();
    try {
      for (const lane of due) {
        while (lane.inFlight.length < IN_FLIGHT_MAX) {
          this.#next(lane);
          if (lane.waiting.length === 0) break;
        }
      }
    } finally {
      this.#on.link.expected();
    }
  };

  /** Sends the orders that wait, as many as one call has. */
  #next(lane: SaleQueue): void {
    let entries = lane.waiting;
    if (lane.weight <= BATCH_MAX) {
      lane.waiting = [];
      lane.weight = 0;
    } else {
      let [count, weight] = [0, 0];
      do weight += this.#kind.weightOf(entries[count++]!.request);
      while (weight + this.#kind.weightOf(entries[count]!.request) <= BATCH_MAX);
      lane.waiting = entries.slice(count);
      lane.weight -= weight;
      entries = entries.slice(0, count);
    }
    if (entries.some(({ request }) => request.signal?.aborted)) {
      for (const { request, reject } of entries) if (request.signal?.aborted) reject(aborted());
      entries = entries.filter(({ request }) => !request.signal?.aborted);
    }
    if (entries.length === 0) {
      this.#settle(lane);
      return;
    }
    const { runtime, link } = this.#on;
    const batch = new Batch(this, lane, entries, this.#kind.encode(entries), runtime.clock.monotonic(), link.breaks);
    lane.inFlight.push(batch);
    this.#send(batch);
  }

  #send(batch: Batch): void {
    const { link, epochs, runtime } = this.#on;
    const { lane } = batch;
    const { wire, parts } = batch.encoded;
    const epoch = epochs.of(lane.saleId);
    if (lane.epoch !== epoch) this.#frame(lane, epoch);
    batch.epoch = epoch;
    const keys = this.#keysCount;
    const whole = lane.keys + lane.head + wire;
    link.send(this.#script, keys, keys + HEAD_ARGS + parts, whole, runtime.clock.monotonic(), batch);
  }

  #frame(lane: SaleQueue, epoch: number): void {
    const { layout, pipeMax, process } = this.#on;
    const sale = layout.sale(lane.saleId);
    const keys = [sale.gate, ...this.#kind.keys(sale.of(epoch))];
    this.#keysCount = keys.length;
    lane.epoch = epoch;
    lane.keys = keys.map(bulk).join('');
    lane.head = [String(epoch), String(pipeMax), process, layout.wake, `${lane.saleId} ${epoch}`].map(bulk).join('');
  }

  /**
   * Called by batches. When several replies arrive together, at most a full batch is read in one turn: callers that order again
   * on their verdict are on the way to Redis before the next reply is read. Otherwise all batches would travel in lockstep, and
   * Redis and this process would wait for each other by turns.
   */
  answered(batch: Batch, reply: unknown): void {
    if (this.#readInTurn === 0) this.#on.runtime.timers.nextTurn(this.#nextTurn);
    else if (this.#readInTurn + batch.entries.length > BATCH_MAX) {
      this.#unread.push({ batch, reply });
      return;
    }
    this.#readInTurn += batch.entries.length;
    this.#read(batch, reply);
  }

  readonly #nextTurn = (): void => {
    this.#readInTurn = 0;
    for (const { batch, reply } of this.#unread.splice(0)) this.answered(batch, reply);
  };

  #read(batch: Batch, reply: unknown): void {
    if (typeof reply === 'number') {
      this.#undecided(batch, reply);
      return;
    }
    this.#settle(batch.lane, batch);
    try {
      const { process } = this.#on;
      batch.encoded.read(String(reply), { epoch: batch.epoch, process, certain: this.#isCertain(batch) });
    } catch (error) {
      for (const { reject } of batch.entries) reject(error);
    }
  }

  /**
   * Whether the reply accounts for every copy of the batch that was sent. In a cluster ioredis resends a command when its
   * connection breaks, without saying so.
   */
  #isCertain(batch: Batch): boolean {
    return !batch.isUncertain && batch.breaks === this.#on.link.breaks;
  }

  /** The gate is stale, or its epoch is not the one we asked for. */
  #undecided(batch: Batch, inForce: number): void {
    const { epochs } = this.#on;
    const { saleId } = batch.lane;
    const known = epochs.of(saleId);
    epochs.saw(saleId, inForce);
    if (!this.#isCertain(batch)) {
      // The gate that was in force before may have admitted it.
      this.#settle(batch.lane, batch);
      for (const { reject } of batch.entries) reject(unavailable('the gate was lost with its answer'));
    } else if (inForce < known || inForce === 0 || ++batch.epochsTried > EPOCHS_MAX) {
      this.#settle(batch.lane, batch);
      for (const { resolve } of batch.entries) resolve(STALE);
    } else {
      this.#send(batch);
    }
  }

  /** Called by batches. */
  failed(batch: Batch, error: unknown): void {
    const { breakers, runtime, retryMs } = this.#on;
    const { lane, entries } = batch;
    if (this.#closed || !(error instanceof RedisUnavailableError)) {
      this.#settle(lane, batch);
      for (const { reject } of entries) reject(this.#closed ? unavailable('the gate is closed', error) : error);
      return;
    }
    if (FULL.test(error.message)) {
      // Not an outage: a full server refuses the script's first write, and so all of it. That says nothing about an earlier copy
      // whose reply was lost: it may have been admitted, and telling the buyers otherwise would be wrong.
      this.#settle(lane, batch);
      this.#on.room.missing(lane.saleId, error);
      const refusal = this.#isCertain(batch) ? overloaded('Redis is full') : unavailable('Redis is full', error);
      for (const { reject } of entries) reject(refusal);
      return;
    }
    batch.isUncertain = true;
    const { message } = error;
    const reason = message === UNREACHED ? message : `Redis does not answer: ${message}`;
    breakers.trip(lane.saleId, reason, detailOf(error));
    const leftMs = batch.sentMs + retryMs - runtime.clock.monotonic();
    void breakers.whenClosed(lane.saleId, leftMs).then((isClosed) => {
      if (isClosed) {
        this.#send(batch);
        return;
      }
      this.#settle(lane, batch);
      for (const { reject } of entries) reject(unavailable('Redis does not answer', error));
    });
  }

  /** A batch is done, or there was nothing to send: sends the next one. */
  #settle(lane: SaleQueue, batch?: Batch): void {
    const at = batch ? lane.inFlight.indexOf(batch) : -1;
    if (at >= 0) lane.inFlight.splice(at, 1);
    if (lane.waiting.length > 0) {
      this.#schedule(lane);
    } else if (lane.inFlight.length === 0 && this.#on.epochs.of(lane.saleId) === 0) {
      // Requests for sales that do not exist must not fill the memory.
      this.#lanes.delete(lane.saleId);
    }
  }

  /** A breaker has opened: fails the orders that were not sent yet. */
  dropWaiting(): void {
    for (const lane of this.#lanes.values()) {
      const reason = this.#closed ? 'the gate is closed' : this.#on.breakers.reasonOf(lane.saleId);
      if (reason === null) continue;
      const entries = lane.waiting;
      lane.waiting = [];
      lane.weight = 0;
      for (const { reject } of entries) reject(notSent(reason));
    }
  }

  close(): void {
    this.#closed = true;
    this.dropWaiting();
    // A connection to a silent server takes a while to close.
    for (const { inFlight } of this.#lanes.values()) {
      for (const { entries } of inFlight) for (const { reject } of entries) reject(unavailable('the gate is closed'));
    }
  }
}

/** Orders that are sent in one call. */
class Batch implements Asker {
  readonly lane: SaleQueue;
  readonly entries: readonly Admission[];
  readonly encoded: EncodedBatch;
  readonly sentMs: number;
  /** The epoch it was sent for last. */
  epoch = 0;
  epochsTried = 0;
  /** A reply was lost: it may have been decided already. */
  isUncertain = false;
  /** The count of broken connections when it was first sent. */
  readonly breaks: number;
  readonly #admissions: Admissions;

  constructor(
    admissions: Admissions,
    lane: SaleQueue,
    entries: readonly Admission[],
    encoded: EncodedBatch,
    sentMs: number,
    breaks: number,
  ) {
    this.#admissions = admissions;
    this.breaks = breaks;
    this.lane = lane;
    this.entries = entries;
    this.encoded = encoded;
    this.sentMs = sentMs;
  }

  answered(reply: unknown): void {
    this.#admissions.answered(this, reply);
  }

  failed(error: unknown): void {
    this.#admissions.failed(this, error);
  }
}

/** A line feed would split a name in two, and two ill-formed names can be the same bytes. The edge refuses both earlier. */
function isName(text: string): boolean {
  return !text.includes('\n') && text.isWellFormed();
}

function overloaded(reason: string): NotAdmittedError {
  return new NotAdmittedError('overloaded', reason);
}

function notSent(reason: string): NotAdmittedError {
  return new NotAdmittedError('unavailable', reason);
}

/** The caller has left, so nobody sees this error; the order was not sent and may be placed again. */
function aborted(): NotAdmittedError {
  return new NotAdmittedError('aborted', 'the order was given up before it was sent to the gate');
}
