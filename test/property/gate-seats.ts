import fc from 'fast-check';
import type { AdmitRequest, Gate, SeatChange, SeatsMove, Verdict } from '../../src/gate/port.ts';
import { houseHoldId } from '../../src/gate/port.ts';
import { bestApart, bestTogether } from '../../src/model/best-seats.ts';
import { orderFingerprint } from '../../src/model/order.ts';
import {
  buildSeatMap,
  encodeSeatMap,
  rowText,
  type SeatMap,
  type SeatRowDefinition,
} from '../../src/model/seat-map.ts';
import type { SnapshotPage } from '../../src/model/snapshot.ts';

/**
 * Seats of one item as a child would write them: who has which seat is a list, everything else is counted from it. Which seats
 * are best is asked of the pure rule. What the ledger would have is kept beside it, since a gate is rebuilt from that.
 */
export interface SeatOrder {
  readonly orderId: string;
  readonly buyer: string;
  seats: number[];
  slots: number[];
  settled: boolean;
  paid: boolean;
}

export type Op =
  | { do: 'admit'; wishes: Wish[] }
  | { do: 'again' | 'late'; pick: number }
  | { do: 'settle' | 'release' | 'withdraw' | 'paid' | 'holdOf'; pick: number }
  | { do: 'hold'; seats: number[]; blocked: boolean }
  | { do: 'drop'; pick: number }
  | { do: 'block'; seats: number[]; deliver: boolean }
  | { do: 'oldBlock'; pick: number }
  | { do: 'move'; pick: number; seats: number[]; held: boolean; deliver: boolean }
  | { do: 'oldMove'; pick: number }
  | { do: 'rebuild'; torn: boolean; late: boolean }
  | { do: 'shut' }
  | { do: 'since'; back: number };

export interface Wish {
  readonly buyer: string;
  readonly how: 'named' | 'together' | 'any';
  readonly seats: number[];
  readonly quantity: number;
  readonly key: string | null;
}

const pick = fc.nat(999);
const places = fc.uniqueArray(fc.nat(999), { minLength: 1, maxLength: 5 });

const wish = fc.record({
  buyer: fc.constantFrom('a', 'b', 'c', 'd'),
  how: fc.constantFrom('named' as const, 'together' as const, 'together' as const, 'any' as const),
  seats: places,
  quantity: fc.constantFrom(1, 1, 2, 2, 3, 4, 5, 8),
  key: fc.option(fc.constantFrom('k1', 'k2'), { nil: null, freq: 4 }),
});

const of = <D extends string>(...names: D[]) => fc.record({ do: fc.constantFrom(...names), pick });

export const op: fc.Arbitrary<Op> = fc.oneof(
  {
    weight: 10,
    arbitrary: fc.record({ do: fc.constant('admit' as const), wishes: fc.array(wish, { minLength: 1, maxLength: 1 }) }),
  },
  {
    weight: 5,
    arbitrary: fc.record({ do: fc.constant('admit' as const), wishes: fc.array(wish, { minLength: 2, maxLength: 8 }) }),
  },
  { weight: 3, arbitrary: of('again', 'late') },
  { weight: 12, arbitrary: of('settle', 'settle', 'release', 'release', 'withdraw', 'paid', 'holdOf') },
  { weight: 3, arbitrary: fc.record({ do: fc.constant('hold' as const), seats: places, blocked: fc.boolean() }) },
  { weight: 2, arbitrary: of('drop', 'oldBlock', 'oldMove') },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('block' as const), seats: places, deliver: fc.boolean() }) },
  {
    weight: 4,
    arbitrary: fc.record({
      ...{ do: fc.constant('move' as const), pick, seats: places, held: fc.boolean(), deliver: fc.boolean() },
    }),
  },
  {
    weight: 2,
    arbitrary: fc.record({ do: fc.constant('rebuild' as const), torn: fc.boolean(), late: fc.boolean() }),
  },
  { weight: 1, arbitrary: fc.constant({ do: 'shut' as const }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('since' as const), back: fc.nat(6) }) },
);

/** Rows with gaps, of 1 to 14 seats. */
export const rows: fc.Arbitrary<SeatRowDefinition[]> = fc
  .array(
    fc.oneof(
      { weight: 3, arbitrary: fc.integer({ min: 1, max: 14 }).map((to) => Array.from({ length: to }, (_, at) => at)) },
      {
        weight: 2,
        arbitrary: fc
          .uniqueArray(fc.nat(16), { minLength: 1, maxLength: 12 })
          .map((numbers) => numbers.toSorted((a, b) => a - b)),
      },
    ),
    { minLength: 1, maxLength: 5 },
  )
  .map((all) => all.map((numbers, at) => ({ section: 'S', row: String(at + 1), numbers })));

export const SALE = '7';
export const ITEM = '11';
const PRICE = { amount: 100, currency: 'CNY' };
const PER_BUYER = 12;

/** `gate` is whatever is tried: each call is answered by all gates, which must agree. */
export interface Tried {
  call<T>(act: (gate: Gate) => Promise<T>): Promise<T>;
  admitAll(requests: AdmitRequest[]): Promise<Verdict[]>;
  readonly nowMs: number;
}

export class SeatRun {
  readonly #tried: Tried;
  readonly #map: SeatMap;
  readonly #requests: AdmitRequest[] = [];
  /** Live orders as the gate must have them; where they sit in the ledger is in `ledger`. */
  #orders: SeatOrder[] = [];
  readonly #ended: AdmitRequest[] = [];
  /** Seats of the ledger's live orders: the gate may not have heard of a move. */
  #moves: (SeatsMove & { from: number[]; told: boolean })[] = [];
  #house = new Map<string, number[]>();
  #blocked: number[] = [];
  #blockedRev = 1;
  /** What the ledger has blocked, by rev. */
  #ledgerBlocked: { rev: number; seats: number[] }[] = [];
  readonly #keys = new Map<string, { orderId: string; fingerprint: string }>();
  #rev = 1;
  #builtRev = 1;
  #movedRev = new Map<string, number>();
  #epoch = 0;
  #lastId = 95;
  #lastHold = 0;
  #shut = false;
  #n = 0;
  /** Seats that two have had since the gate was built: whether they are shown as reserved or as sold is not promised. */
  #doubted = new Set<number>();

  constructor(tried: Tried, definition: SeatRowDefinition[]) {
    this.#tried = tried;
    this.#map = buildSeatMap(definition);
  }

  async start(): Promise<void> {
    await this.#rebuild(false, false);
  }

  async step(op: Op): Promise<void> {
    await this.#do(op);
    await this.#judge(op.do);
  }

  #seatsOf(picked: number[]): number[] {
    return [...new Set(picked.map((seat) => seat % this.#map.size))].sort((a, b) => a - b);
  }

  /** Who has a seat: orders and holds of the house. */
  #takers(seat: number): number {
    const orders = this.#orders.filter(({ seats }) => seats.includes(seat)).length;
    return orders + [...this.#house.values()].filter((seats) => seats.includes(seat)).length;
  }

  #isFree(seat: number): boolean {
    return this.#takers(seat) === 0 && !this.#blocked.includes(seat);
  }

  #rowTexts(): string[] {
    return this.#map.rows.map(({ numbers, first }) =>
      rowText(numbers, numbers.map((_, at) => (this.#isFree(first + at) ? 'f' : 'r')).join('')),
    );
  }

  /** Live orders and holds may claim a seat twice while a gate is told what has changed: then fewer count as free. */
  #free(): number {
    const held = this.#orders.reduce((sum, { seats }) => sum + seats.length, 0);
    const house = [...this.#house.values()].reduce((sum, seats) => sum + seats.length, 0);
    return this.#map.size - this.#blocked.length - held - house;
  }

  async #do(op: Op): Promise<void> {
    const order = 'pick' in op ? this.#orders[op.pick % this.#orders.length] : undefined;
    const { call } = this.#tried;
    switch (op.do) {
      case 'admit':
        return this.#admit(op.wishes.map((each) => this.#request(each)));
      case 'again': {
        const open = this.#requests.filter(({ orderId }) => !this.#ended.some((one) => one.orderId === orderId));
        const request = open[op.pick % open.length];
        return request && this.#admit([request]);
      }
      case 'late': {
        // A copy of an admission that is executed when its order has ended: what it takes is released by the ledger's row.
        const request = this.#ended[op.pick % this.#ended.length];
        if (!request) return;
        await this.#admit([request]);
        await call((gate) => gate.release(SALE, request));
        this.#orders = this.#orders.filter(({ orderId }) => orderId !== request.orderId);
        return;
      }
      case 'settle':
        if (order) {
          await call((gate) => gate.settle(SALE, [order]));
          order.settled = true;
        }
        return;
      case 'paid':
        if (order?.settled) {
          await call((gate) => gate.paid(SALE, [order]));
          order.paid = true;
        }
        return;
      case 'holdOf':
        return call(async (gate) => {
          const held = await gate.holdOf(SALE, order ?? { orderId: '1', buyer: 'a' });
          this.#same(held?.seats, order?.seats, 'the seats of a hold');
        });
      case 'release':
      case 'withdraw': {
        if (!order || (op.do === 'withdraw' && order.settled)) return;
        const request = this.#requests.find(({ orderId }) => orderId === order.orderId)!;
        const end = (gate: Gate) => (op.do === 'release' ? gate.release(SALE, request) : gate.withdraw(SALE, request));
        for (let times = 0; times < 2; times++) await call(end);
        this.#orders = this.#orders.filter((one) => one !== order);
        if (op.do === 'release') this.#ended.push(request);
        else for (const [name, { orderId }] of this.#keys) if (orderId === order.orderId) this.#keys.delete(name);
        return;
      }
      case 'hold': {
        const seats = this.#seatsOf(op.seats);
        await this.#hold(houseHoldId(String(++this.#lastHold)), seats, op.blocked, undefined);
        return;
      }
      case 'drop': {
        const holds = [...this.#house.keys()];
        const holdId = holds[op.pick % holds.length] ?? 'none';
        await call((gate) => gate.dropHouseHold(SALE, ITEM, holdId));
        this.#house.delete(holdId);
        return;
      }
      case 'block': {
        // The ledger blocks what nobody has there: which seats that are makes no difference to the gate.
        this.#ledgerBlocked.push({ rev: ++this.#rev, seats: this.#seatsOf(op.seats) });
        if (op.deliver) await this.#deliverBlocked(this.#ledgerBlocked.at(-1)!);
        return;
      }
      case 'oldBlock': {
        const old = this.#ledgerBlocked[op.pick % this.#ledgerBlocked.length];
        return old && this.#deliverBlocked(old);
      }
      case 'move': {
        if (!order?.settled) return;
        const seats = this.#seatsOf(op.seats).slice(0, order.seats.length);
        if (seats.length < order.seats.length) return;
        const auditId = String(++this.#lastHold);
        if (op.held && !(await this.#hold(houseHoldId(auditId), seats, false, order))) return;
        const { orderId, buyer } = order;
        const from = this.#ledgerSeats(order);
        const move = { orderId, buyer, itemId: ITEM, to: seats, auditId, rev: ++this.#rev, from, told: false };
        this.#moves.push(move);
        if (op.deliver) await this.#deliverMove(move);
        return;
      }
      case 'oldMove': {
        const old = this.#moves[op.pick % this.#moves.length];
        return old && this.#deliverMove(old);
      }
      case 'rebuild':
        return this.#rebuild(op.torn, op.late);
      case 'shut':
        await call((gate) => gate.shut(SALE));
        this.#shut = true;
        return;
      case 'since': {
        const n = Math.max(this.#n - op.back, 0);
        await call((gate) => gate.seats(SALE, { epoch: this.#epoch, n }));
        return;
      }
    }
  }

  #request({ buyer, how, seats: picked, quantity, key }: Wish): AdmitRequest {
    const seats = this.#seatsOf(picked);
    const orderId = String(++this.#lastId);
    const common = { saleId: SALE, orderId, itemCode: 'stalls', buyer, key };
    if (how === 'named') {
      return {
        ...common,
        ...{ quantity: seats.length, seats, fingerprint: orderFingerprint('stalls', seats.length, { seats }) },
      };
    }
    const fingerprint = orderFingerprint('stalls', quantity, { together: how === 'together' });
    return { ...common, quantity, seats: how, fingerprint };
  }

  async #admit(requests: AdmitRequest[]): Promise<void> {
    const verdicts = await this.#tried.admitAll(requests);
    for (const [at, verdict] of verdicts.entries()) this.#judgeVerdict(requests[at]!, verdict);
  }

  #judgeVerdict(request: AdmitRequest, verdict: Verdict): void {
    const { orderId, buyer, key, fingerprint } = request;
    if (!this.#requests.includes(request)) this.#requests.push(request);
    const expected = this.#expected(request);
    this.#same(
      verdict.outcome,
      Array.isArray(expected) ? 'admitted' : expected.outcome,
      `the outcome of ${fingerprint}`,
    );
    if (!Array.isArray(expected)) {
      if ('seats' in expected) this.#same(verdict, expected, 'the seats that are taken');
      return;
    }
    this.#same(seatsOf(verdict), expected, `the seats of ${fingerprint}`);
    if (this.#orders.some((order) => order.orderId === orderId)) return;
    const { slots } = (verdict as { message: { slots: number[] } }).message;
    this.#orders.push({ orderId, buyer, seats: expected, slots, settled: false, paid: false });
    if (key !== null) this.#keys.set(`${buyer} ${key}`, { orderId, fingerprint });
  }

  /** The seats that an order must get, or at least the outcome. */
  #expected(request: AdmitRequest): number[] | { outcome: Verdict['outcome']; seats?: number[] } {
    const { orderId, buyer, key, fingerprint, quantity, seats } = request;
    if (this.#shut) return { outcome: 'stale' };
    const known = this.#orders.find((order) => order.orderId === orderId);
    if (known) return known.seats;
    const bound = key === null ? undefined : this.#keys.get(`${buyer} ${key}`);
    if (bound) return { outcome: bound.fingerprint === fingerprint ? 'replayed' : 'idempotency_key_reused' };
    const mine = this.#orders.filter((order) => order.buyer === buyer).flatMap(({ slots }) => slots);
    if (mine.length + quantity > PER_BUYER) return { outcome: 'limit_reached' };
    if (typeof seats !== 'string') {
      const taken = seats!.filter((seat) => !this.#isFree(seat));
      return taken.length > 0 ? { outcome: 'seat_taken', seats: taken } : [...seats!];
    }
    if (this.#free() < quantity) return { outcome: 'sold_out' };
    const texts = this.#rowTexts();
    const together = seats === 'together' ? bestTogether(texts, quantity) : null;
    const chosen = seats === 'together' ? together && [together] : bestApart(texts, quantity);
    if (chosen === null) return { outcome: 'not_together' };
    return chosen.flatMap(({ row, seats: inRow }) => inRow.map((place) => this.#map.rows[row]!.first + place));
  }

  async #hold(holdId: string, seats: number[], blocked: boolean, order: SeatOrder | undefined): Promise<boolean> {
    const said = await this.#tried.call((gate) =>
      gate.holdSeats(SALE, ITEM, seats, { holdId, blocked, ...(order && { order }) }),
    );
    const wanted = seats.filter(
      (seat) => !order?.seats.includes(seat) && !(blocked && this.#takers(seat) === 0 && this.#blocked.includes(seat)),
    );
    const taken = wanted.filter((seat) => !this.#isFree(seat));
    if (taken.length > 0) {
      this.#same(said, { outcome: 'seat_taken', seats: taken }, 'seats of the house');
      return false;
    }
    this.#same(said, { outcome: 'held' }, 'seats of the house');
    this.#house.set(holdId, wanted);
    return true;
  }

  async #deliverBlocked({ rev, seats }: { rev: number; seats: number[] }): Promise<void> {
    await this.#tried.call((gate) => gate.applyBlocked(SALE, { itemId: ITEM, rev, seats }));
    if (rev <= this.#blockedRev) return;
    this.#blocked = seats;
    this.#blockedRev = rev;
  }

  async #deliverMove(move: SeatsMove & { told: boolean }): Promise<void> {
    await this.#tried.call((gate) => gate.moveSeats(SALE, move));
    this.#house.delete(houseHoldId(move.auditId));
    move.told = true;
    const order = this.#orders.find(({ orderId }) => orderId === move.orderId);
    if (!order || move.rev <= Math.max(this.#builtRev, this.#movedRev.get(move.orderId) ?? 0)) return;
    if (order.seats.some((seat) => this.#doubted.has(seat))) for (const seat of move.to) this.#doubted.add(seat);
    order.seats = [...move.to];
    this.#doubt();
    this.#movedRev.set(move.orderId, move.rev);
  }

  #ledgerSeats({ orderId, seats }: SeatOrder): number[] {
    const last = this.#moves.findLast((move) => move.orderId === orderId);
    return last ? [...last.to] : seats;
  }

  /**
   * From the ledger: orders that it has stored. `torn`: pages are older than the last moves, some orders sit where they sat before.
   * `late`: what was changed since the snapshot is told when the gate is in place, as a rebuild does.
   */
  async #rebuild(torn: boolean, late: boolean): Promise<void> {
    const stored = this.#orders.filter(({ settled }) => settled);
    const lastMoves = torn ? this.#moves.slice(-2) : [];
    const builtRev = lastMoves[0] ? lastMoves[0].rev - 1 : this.#rev;
    const blockedThen = this.#ledgerBlocked.findLast(({ rev }) => rev <= builtRev)?.seats ?? [];
    const snapshotSeats = (order: SeatOrder, at: number): number[] => {
      const since = lastMoves.filter(({ orderId }) => orderId === order.orderId);
      // The page of every other order was read before its moves.
      return since.length > 0 && at % 2 === 0 ? [...since[0]!.from] : this.#ledgerSeats(order);
    };
    const holds = stored.map((order, at) => ({
      ...{ orderId: order.orderId, itemId: ITEM, buyer: order.buyer, slots: order.slots },
      ...{ seats: snapshotSeats(order, at), paid: order.paid },
    }));
    const keys = [...this.#keys].filter(([, { orderId }]) => stored.some((order) => order.orderId === orderId));
    const page: SnapshotPage = {
      holds,
      keys: keys.map(([name, bound]) => {
        const [buyer, key] = name.split(' ') as [string, string];
        return { buyer, key, ...bound, boundAtMs: this.#tried.nowMs };
      }),
    };
    const epoch = ++this.#epoch;
    const { nowMs } = this.#tried;
    const snapshot = {
      ...{ saleId: SALE, epoch, version: 1, opensAtMs: nowMs, closesAtMs: nowMs + 3_600_000, mayAdmit: true },
      ...{ paused: false, closed: false, perBuyer: PER_BUYER, payWithinSeconds: 900 },
      items: [
        {
          ...{ id: ITEM, code: 'stalls', price: PRICE, total: this.#map.size, blocked: blockedThen.length },
          ...{ rev: builtRev, seats: { map: encodeSeatMap(this.#map), blocked: blockedThen } },
        },
      ],
    };
    await this.#tried.call((gate) => gate.install({ ...snapshot, content: [page] }));
    this.#shut = false;
    this.#house = new Map();
    this.#orders = stored;
    for (const [at, order] of stored.entries()) order.seats = holds[at]!.seats;
    this.#keys.clear();
    for (const [name, bound] of keys) this.#keys.set(name, bound);
    this.#blocked = blockedThen;
    this.#blockedRev = builtRev;
    this.#builtRev = builtRev;
    this.#movedRev = new Map();
    this.#doubted = new Set();
    this.#doubt();
    if (torn || late) {
      for (const move of this.#moves) if (move.rev > builtRev) await this.#deliverMove(move);
      const now = this.#ledgerBlocked.at(-1);
      if (now && late) await this.#deliverBlocked(now);
    }
  }

  #doubt(): void {
    for (let seat = 0; seat < this.#map.size; seat++) if (this.#takers(seat) > 1) this.#doubted.add(seat);
  }

  async #judge(did: string): Promise<void> {
    const shown = await this.#tried.call((gate) => gate.seats(SALE));
    const view = await this.#tried.call((gate) => gate.view(SALE));
    if (shown === null || !('items' in shown)) throw new Error(`no seats are shown after ${did}`);
    const { revision, items } = shown;
    this.#n = revision.n;
    const free = [...items[0]!.states].map((state) => state === 'f');
    const expected = free.map((_, seat) => this.#isFree(seat));
    this.#same(free, expected, `the free seats after ${did}`);
    this.#doubt();
    // A seat that one order has is shown as that order is.
    for (const { seats, paid } of this.#orders) {
      for (const seat of seats) {
        if (this.#doubted.has(seat)) continue;
        this.#same(items[0]!.states[seat], paid ? 's' : 'r', `seat ${seat} after ${did}`);
      }
    }
    const counts = view![0]!;
    this.#same(counts.free, this.#free(), `the count of free seats after ${did}`);
    this.#same(counts.blocked, this.#blocked.length, `the count of blocked seats after ${did}`);
    const held = this.#orders.reduce((sum, { seats }) => sum + seats.length, 0);
    this.#same(counts.held + counts.queued, held, `the count of held seats after ${did}`);
  }

  #same(actual: unknown, expected: unknown, what: string): void {
    if (JSON.stringify(actual) === JSON.stringify(expected)) return;
    throw new Error(`${what}: ${JSON.stringify(actual)} instead of ${JSON.stringify(expected)}`);
  }
}

function seatsOf(verdict: Verdict): unknown {
  return verdict.outcome === 'admitted' ? verdict.message.seats : verdict;
}

/** The states that follow from changes: whoever has read all and follows them sees what is shown. */
export function followed(states: string, changes: readonly SeatChange[]): string {
  const letters = [...states];
  for (const { seats, state } of changes) for (const seat of seats) letters[seat] = state;
  return letters.join('');
}
