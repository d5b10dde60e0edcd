import { setTimeout as sleep } from 'node:timers/promises';
import type { Cluster, Redis } from 'ioredis';
import type { ManualClock } from '../../src/base/clock.ts';
import type {
  AdmitRequest,
  BlockedSeats,
  Gate,
  HoldRef,
  Latest,
  SeatRevision,
  SeatsForHouse,
  SeatsMove,
  Verdict,
} from '../../src/gate/port.ts';
import type { RedisGate } from '../../src/gate/redis/gate.ts';
import type { OrderMessage } from '../../src/model/order.ts';
import { type SaleSnapshot, type SaleValues, type SnapshotPage, saleValues } from '../../src/model/snapshot.ts';
import { decodeEntry } from '../../src/model/stream-entry.ts';

/** A millisecond of the test's clock is a second of Redis', so that "1 ms before it opens" can be tested without a race. */
const SCALE = 1000;
/** Windows are shifted when this much real time has passed; far less than a scaled millisecond. */
const DRIFT_MS = 200;
/** Space between versions: a shifted window is a new version for the gate. */
const ROOM = 1_000_000;

/** A period in which the test's clock stood still. */
interface Stand {
  manualMs: number;
  realMs: number;
}

/**
 * A RedisGate for tests with a manual clock. Redis has its own clock, so times are translated on
 * their way in and out. When the test's clock has moved, the gate gets the window of a sale again, relative to now and
 * through the port alone (as a newer version). Past times are translated by a record of earlier moves.
 */
export class TranslatedGate implements Gate {
  inner: Gate;
  readonly #clock: ManualClock;
  readonly #stands: Stand[] = [];
  /** The values that the test has set. */
  readonly #sales = new Map<string, { values: SaleValues; epoch: number; given: Given | null }>();
  #moves = 0;

  constructor(inner: Gate, clock: ManualClock) {
    this.inner = inner;
    this.#clock = clock;
    this.#stands.push({ manualMs: clock.now(), realMs: Date.now() });
  }

  /** The test's current time, and the corresponding time in Redis. */
  async #now(): Promise<Stand> {
    const manualMs = this.#clock.now();
    let last = this.#stands.at(-1)!;
    if (last.manualMs !== manualMs) {
      // Events before the move must also be earlier in Redis' milliseconds.
      await sleep(2);
      last = { manualMs, realMs: Date.now() };
      this.#stands.push(last);
      await sleep(2);
    }
    return last;
  }

  /** A window relative to now. */
  #given(values: SaleValues): Given {
    const nowMs = Date.now();
    const real = (ms: number): number => Math.max(nowMs + (ms - this.#clock.now()) * SCALE, 0);
    const version = values.version * ROOM + this.#moves;
    const moved = { ...values, opensAtMs: real(values.opensAtMs), closesAtMs: real(values.closesAtMs), version };
    return { values: moved, atMs: nowMs, manualMs: this.#clock.now() };
  }

  /** Translates a time of the test to Redis' time. */
  #past(ms: number): number {
    const first = this.#stands[0]!;
    if (ms < first.manualMs) return first.realMs - (first.manualMs - ms);
    const stand = this.#stands.find(({ manualMs }) => manualMs >= ms);
    return stand?.realMs ?? Date.now() + SCALE;
  }

  async #ready(saleId: string): Promise<void> {
    await this.#now();
    const sale = this.#sales.get(saleId);
    if (!sale?.given) return;
    const { given } = sale;
    if (given.manualMs === this.#clock.now() && Date.now() - given.atMs < DRIFT_MS) return;
    this.#moves++;
    sale.given = this.#given(sale.values);
    await this.inner.applySale(saleId, sale.given.values);
  }

  async install(snapshot: SaleSnapshot, latest?: () => Promise<Latest | null>): Promise<void> {
    await this.#now();
    const { saleId, epoch } = snapshot;
    const given = this.#given(saleValues(snapshot));
    const content: SnapshotPage[] = [];
    for await (const { holds, keys } of snapshot.content) {
      content.push({ holds, keys: keys.map((key) => ({ ...key, boundAtMs: this.#past(key.boundAtMs) })) });
    }
    let told: Latest | null = null;
    const translated = async (): Promise<Latest | null> => {
      told = await latest!();
      if (told === null) return null;
      const { items, blockedSeats = [] } = told;
      return { ...this.#given(saleValues(told)).values, items, blockedSeats };
    };
    await this.inner.install({ ...snapshot, ...given.values, content }, latest && translated);
    const sale = this.#sales.get(saleId);
    if (sale && sale.epoch >= epoch) return;
    const stays = sale?.given && sale.values.version > snapshot.version;
    const values = stays ? sale.values : saleValues(snapshot);
    this.#sales.set(saleId, { values, epoch, given: stays ? sale.given : given });
    if (told) await this.applySale(saleId, saleValues(told));
  }

  async shut(saleId: string, upTo?: number): Promise<void> {
    await this.inner.shut(saleId, upTo);
  }

  async remove(saleId: string): Promise<void> {
    await this.inner.remove(saleId);
    const sale = this.#sales.get(saleId);
    if (sale) sale.given = null;
  }

  async admit(request: AdmitRequest): Promise<Verdict> {
    return (await this.admitAll([request]))[0]!;
  }

  /** All in one turn, in this order. */
  async admitAll(requests: AdmitRequest[]): Promise<Verdict[]> {
    for (const { saleId } of requests) await this.#ready(saleId);
    const verdicts = await Promise.all(requests.map((request) => this.inner.admit(request)));
    return verdicts.map((verdict, at) => this.#translated(requests[at]!, verdict));
  }

  #translated(request: AdmitRequest, verdict: Verdict): Verdict {
    if (!('opensAtMs' in verdict)) return verdict;
    // It returns the window that it was given: translate it back.
    const { values, given } = this.#sales.get(request.saleId)!;
    const { opensAtMs, closesAtMs } = given!.values;
    if (verdict.opensAtMs !== opensAtMs || verdict.closesAtMs !== closesAtMs) return verdict;
    return { ...verdict, opensAtMs: values.opensAtMs, closesAtMs: values.closesAtMs };
  }

  async applySale(saleId: string, values: SaleValues): Promise<void> {
    await this.#now();
    const given = this.#given(values);
    await this.inner.applySale(saleId, given.values);
    const sale = this.#sales.get(saleId);
    if (sale?.given && values.version > sale.values.version) Object.assign(sale, { values: saleValues(values), given });
  }

  async pruneKeys(olderMs: number): Promise<void> {
    await this.#now();
    const beforeMs = this.#past(this.#clock.now() - olderMs);
    await (this.inner as RedisGate).pruneKeysBefore(() => beforeMs);
  }

  settle(saleId: string, holds: readonly HoldRef[]) {
    return this.inner.settle(saleId, holds);
  }

  release(saleId: string, hold: HoldRef) {
    return this.inner.release(saleId, hold);
  }

  withdraw(saleId: string, hold: HoldRef & { key: string | null }) {
    return this.inner.withdraw(saleId, hold);
  }

  holdOf(saleId: string, hold: HoldRef) {
    return this.inner.holdOf(saleId, hold);
  }

  keyOf(saleId: string, buyer: string, key: string) {
    return this.inner.keyOf(saleId, buyer, key);
  }

  epochOf(saleId: string) {
    return this.inner.epochOf(saleId);
  }

  applyTotal(saleId: string, itemId: string, total: number, rev: number) {
    return this.inner.applyTotal(saleId, itemId, total, rev);
  }

  holdForHouse(saleId: string, itemId: string, units: number, holdId: string) {
    return this.inner.holdForHouse(saleId, itemId, units, holdId);
  }

  dropHouseHold(saleId: string, itemId: string, holdId: string, lowered?: { total: number; rev: number }) {
    return this.inner.dropHouseHold(saleId, itemId, holdId, lowered);
  }

  view(saleId: string) {
    return this.inner.view(saleId);
  }

  paid(saleId: string, holds: readonly HoldRef[]) {
    return this.inner.paid(saleId, holds);
  }

  holdSeats(saleId: string, itemId: string, seats: readonly number[], hold: SeatsForHouse) {
    return this.inner.holdSeats(saleId, itemId, seats, hold);
  }

  applyBlocked(saleId: string, blocked: BlockedSeats, holdId?: string) {
    return this.inner.applyBlocked(saleId, blocked, holdId);
  }

  moveSeats(saleId: string, move: SeatsMove) {
    return this.inner.moveSeats(saleId, move);
  }

  seats(saleId: string, since?: SeatRevision) {
    return this.inner.seats(saleId, since);
  }
}

interface Given {
  values: SaleValues;
  atMs: number;
  manualMs: number;
}

/** All messages in the streams of a sale, over all epochs, in order. */
export async function streamed(client: Redis | Cluster, prefix: string, saleId: string): Promise<OrderMessage[]> {
  const begin = `${prefix}:{${saleId}:0}`;
  const entries: { at: number[]; messages: OrderMessage[] }[] = [];
  for (const epoch of await client.smembers(`${begin}:epochs`)) {
    for (const [id, fields] of await client.xrange(`${begin}:${epoch}:stream`, '-', '+')) {
      entries.push({ at: [Number(epoch), ...id.split('-').map(Number)], messages: decodeEntry(saleId, fields) });
    }
  }
  entries.sort((a, b) => a.at[0]! - b.at[0]! || a.at[1]! - b.at[1]! || a.at[2]! - b.at[2]!);
  return entries.flatMap(({ messages }) => messages);
}

let made = 0;

/** A unique prefix. */
export function ownPrefix(): string {
  return `gate-${process.pid}-${Date.now()}-${++made}`;
}
