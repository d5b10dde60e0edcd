import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { MemoryGate } from '../../src/gate/memory.ts';
import type { AdmitRequest, Gate, ItemView } from '../../src/gate/port.ts';
import { type OrderMessage, orderFingerprint } from '../../src/model/order.ts';
import { type ManualRuntime, manualRuntime, T0 } from '../contract/manual.ts';
import { paged } from '../support/snapshot.ts';
import { GateModel } from './gate-model.ts';
import { LONG_TIMEOUT_MS, seeded } from './seed.ts';

/**
 * Random programs against the in-process gate. `answers` compares every answer and every count with the model's. The
 * promises are judged without it, from what the gate itself has said and done: a model that shared a fault with the
 * gate would agree with it, and the promises would still not.
 */
type Check = 'answers' | 'P1' | 'P2' | 'P4' | 'P5' | 'P9';

const SALE = '7';
const CODES = ['voucher', 'poster'];
const WINDOW_MS = 10_000;

/** `pick` chooses among what exists at that point of the program, so that shrinking keeps a program meaningful. */
type Op =
  | { do: 'admit'; buyer: string; item: string; quantity: number; key: string | null }
  | { do: 'again' | 'late' | 'settle' | 'release' | 'withdraw'; pick: number }
  | { do: 'restock'; item: string; add: number; deliver: boolean }
  | { do: 'oldTotal' | 'oldSale'; pick: number }
  | { do: 'houseHold'; item: string; units: number }
  | { do: 'houseHoldAgain'; pick: number }
  | { do: 'dropHouse'; pick: number; lower: boolean }
  | { do: 'patch'; perBuyer: number; paused: boolean; deliver: boolean }
  | { do: 'close' | 'rebuild' | 'oldInstall' }
  | { do: 'pass' | 'prune'; ms: number };

const pick = fc.nat(999);
const item = fc.constantFrom(...CODES, 'no-such');
const known = fc.constantFrom(...CODES);

const op: fc.Arbitrary<Op> = fc.oneof(
  {
    weight: 14,
    arbitrary: fc.record({
      do: fc.constant('admit' as const),
      buyer: fc.constantFrom('a', 'b', 'c', 'A'),
      item: fc.oneof({ weight: 20, arbitrary: known }, { weight: 1, arbitrary: item }),
      quantity: fc.constantFrom(1, 1, 1, 2, 3),
      key: fc.option(fc.constantFrom('k1', 'k2'), { nil: null, freq: 2 }),
    }),
  },
  { weight: 3, arbitrary: fc.record({ do: fc.constant('again' as const), pick }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('late' as const), pick }) },
  { weight: 5, arbitrary: fc.record({ do: fc.constant('settle' as const), pick }) },
  { weight: 5, arbitrary: fc.record({ do: fc.constant('release' as const), pick }) },
  { weight: 3, arbitrary: fc.record({ do: fc.constant('withdraw' as const), pick }) },
  {
    weight: 2,
    arbitrary: fc.record({
      do: fc.constant('restock' as const),
      item: known,
      add: fc.integer({ min: 0, max: 3 }),
      deliver: fc.boolean(),
    }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constantFrom('oldTotal' as const, 'oldSale' as const), pick }) },
  {
    weight: 2,
    arbitrary: fc.record({
      do: fc.constant('houseHold' as const),
      item: known,
      units: fc.integer({ min: 1, max: 3 }),
    }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('houseHoldAgain' as const), pick }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('dropHouse' as const), pick, lower: fc.boolean() }) },
  {
    weight: 3,
    arbitrary: fc.record({
      do: fc.constant('patch' as const),
      perBuyer: fc.integer({ min: 1, max: 4 }),
      paused: fc.constantFrom(false, false, true),
      deliver: fc.constantFrom(true, true, false),
    }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constantFrom('rebuild' as const, 'oldInstall' as const) }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('pass' as const), ms: fc.integer({ min: 1, max: 2500 }) }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('prune' as const), ms: fc.integer({ min: 0, max: 4000 }) }) },
);

/** Mostly long in the open window; the end (close, or time that runs out) comes last so that it does not hide the rest. */
const program = fc.record({
  totals: fc.tuple(fc.integer({ min: 0, max: 5 }), fc.integer({ min: 0, max: 5 })),
  blocked: fc.constantFrom(0, 0, 1),
  perBuyer: fc.integer({ min: 1, max: 4 }),
  opensInMs: fc.constantFrom(0, 0, 0, 500),
  ops: fc.array(op, { minLength: 1, maxLength: 60, size: 'max' }),
  end: fc.constantFrom<Op>({ do: 'close' }, { do: 'pass', ms: WINDOW_MS * 4 }),
  afterwards: fc.array(op, { maxLength: 8 }),
});

type Program = typeof program extends fc.Arbitrary<infer P> ? P : never;

class Run {
  readonly #runtime: ManualRuntime = manualRuntime();
  readonly #emitted: OrderMessage[] = [];
  readonly #gate: Gate = new MemoryGate(this.#runtime, (message) => this.#emitted.push(message));
  readonly #model: GateModel;
  /** What the ledger has: it numbers totals and sale values, whether they were delivered or not. */
  readonly #ledger: { code: string; total: number; rev: number }[];
  readonly #totals: { code: string; total: number; rev: number }[] = [];
  readonly #sales: { version: number; perBuyer: number; paused: boolean; closed: boolean }[] = [];
  #ledgerSale: { version: number; perBuyer: number; paused: boolean; closed: boolean };
  readonly #requests: AdmitRequest[] = [];
  readonly #admitted: { orderId: string; buyer: string; key: string | null }[] = [];
  /** Orders that were released: the ledger has them as ended. */
  readonly #ended = new Set<string>();
  readonly #houseHolds: { holdId: string; item: string; units: number }[] = [];
  readonly #check: Check;
  #lastId = 0;

  constructor({ totals, blocked, perBuyer, opensInMs }: Program, check: Check) {
    this.#check = check;
    const items = CODES.map((code, at) => ({
      id: String(11 + at),
      code,
      total: totals[at]!,
      blocked: Math.min(blocked, totals[at]!),
      rev: 1,
    }));
    this.#model = new GateModel(items, perBuyer, T0 + opensInMs, T0 + WINDOW_MS);
    this.#ledger = items.map(({ code, total, rev }) => ({ code, total, rev }));
    this.#ledgerSale = { version: 1, perBuyer, paused: false, closed: false };
  }

  async start(): Promise<void> {
    await this.#install(1);
  }

  async step(op: Op): Promise<void> {
    const before = await this.#views();
    const returned = await this.#do(op);
    await this.#judge(before, returned);
  }

  /** Of a step that ends an order, or tries to: the units that must come back by it (P4). Null for other steps. */
  async #do(op: Op): Promise<{ code: string; units: number } | null> {
    const gate = this.#gate;
    const model = this.#model;
    switch (op.do) {
      case 'admit': {
        const { buyer, item, quantity, key } = op;
        const fingerprint = orderFingerprint(item, quantity);
        const orderId = String(++this.#lastId);
        const request = { saleId: SALE, orderId, itemCode: item, buyer, quantity, key, fingerprint };
        this.#requests.push(request);
        await this.#admit(request);
        return null;
      }
      case 'late': {
        // A copy of an admission that comes when its order has ended. The ledger's row then decides: what it took is released.
        const ended = this.#requests.filter(({ orderId }) => this.#ended.has(orderId));
        const request = ended[op.pick % ended.length];
        if (!request) return null;
        await this.#admit(request);
        for (let times = 0; times < 2; times++) await gate.release(SALE, request);
        model.release(request.orderId);
        return { code: request.itemCode, units: 0 };
      }
      case 'again': {
        // One that has ended is `late`.
        const open = this.#requests.filter(
          ({ orderId }) => model.ofOrder(orderId).length > 0 || !this.#admitted.some((o) => o.orderId === orderId),
        );
        const request = open[op.pick % open.length];
        if (request) await this.#admit(request);
        return null;
      }
      case 'settle':
      case 'release':
      case 'withdraw': {
        const hold = this.#admitted[op.pick % this.#admitted.length] ?? { orderId: '999999', buyer: 'a', key: null };
        const { orderId } = hold;
        const units = model.ofOrder(orderId);
        // Nobody withdraws what the ledger has stored.
        if (op.do === 'withdraw' && units.some(({ queued }) => !queued)) return null;
        if (op.do === 'settle') await gate.settle(SALE, [hold]);
        else await gate[op.do](SALE, hold);
        model[op.do](orderId);
        if (op.do === 'release' && units.length > 0) this.#ended.add(orderId);
        const ended = op.do === 'settle' ? 0 : units.length;
        return { code: units[0]?.item ?? CODES[0]!, units: ended };
      }
      case 'restock': {
        const row = this.#ledger.find(({ code }) => code === op.item)!;
        row.total += op.add;
        row.rev++;
        this.#totals.push({ ...row });
        if (op.deliver) await this.#deliverTotal({ ...row });
        return null;
      }
      case 'oldTotal': {
        const old = this.#totals[op.pick % this.#totals.length];
        if (old) await this.#deliverTotal(old);
        return null;
      }
      case 'patch': {
        const { perBuyer, paused } = op;
        const { version, closed } = this.#ledgerSale;
        this.#ledgerSale = { version: version + 1, perBuyer, paused, closed };
        this.#sales.push(this.#ledgerSale);
        if (op.deliver) await this.#deliverSale(this.#ledgerSale);
        return null;
      }
      case 'close':
        this.#ledgerSale = { ...this.#ledgerSale, version: this.#ledgerSale.version + 1, closed: true };
        await this.#deliverSale(this.#ledgerSale);
        return null;
      case 'oldSale': {
        const old = this.#sales[op.pick % this.#sales.length];
        if (old) await this.#deliverSale(old);
        return null;
      }
      case 'houseHold': {
        const holdId = `house:${this.#houseHolds.length}`;
        const free = model.free(op.item);
        const { id } = model.items.find(({ code }) => code === op.item)!;
        const held = await gate.holdForHouse(SALE, id, op.units, holdId);
        this.#demand('answers', held === free >= op.units, `holdForHouse said ${held} with ${free} free`);
        if (held) {
          for (let unit = 0; unit < op.units; unit++) model.house.push({ item: op.item, holdId });
          this.#houseHolds.push({ holdId, item: op.item, units: op.units });
        }
        return null;
      }
      case 'houseHoldAgain': {
        const held = this.#houseHolds.filter(({ holdId }) => model.house.some((unit) => unit.holdId === holdId));
        const hold = held[op.pick % held.length];
        const id = model.items.find(({ code }) => code === hold?.item)?.id;
        if (!hold) return null;
        const stands = await gate.holdForHouse(SALE, id!, hold.units, hold.holdId);
        this.#demand('answers', stands, 'a hold of the house stands, asked for again');
        return null;
      }
      case 'dropHouse': {
        const hold = this.#houseHolds[op.pick % this.#houseHolds.length];
        if (!hold) return null;
        const row = this.#ledger.find(({ code }) => code === hold.item)!;
        const item = model.items.find(({ code }) => code === hold.item)!;
        const stands = model.house.some(({ holdId }) => holdId === hold.holdId);
        // The ledger lowers only while the hold stands: a rebuild that forgot it is a contract test of its own.
        if (op.lower && stands) {
          row.total -= hold.units;
          row.rev++;
          this.#totals.push({ ...row });
          await gate.dropHouseHold(SALE, item.id, hold.holdId, { total: row.total, rev: row.rev });
          item.total = row.total;
          item.rev = row.rev;
        } else {
          await gate.dropHouseHold(SALE, item.id, hold.holdId);
        }
        model.house = model.house.filter(({ holdId }) => holdId !== hold.holdId);
        return null;
      }
      case 'rebuild':
        model.rebuild();
        for (const item of model.items)
          Object.assign(
            item,
            this.#ledger.find(({ code }) => code === item.code),
          );
        Object.assign(model, this.#ledgerSale);
        await this.#install(model.epoch);
        return null;
      case 'oldInstall':
        await this.#install(Math.max(model.epoch - 1, 1));
        return null;
      case 'pass':
        this.#runtime.clock.advance(op.ms);
        return null;
      case 'prune': {
        await gate.pruneKeys(op.ms);
        model.pruneKeys(this.#runtime.clock.now() - op.ms);
        return null;
      }
    }
  }

  #demand(check: Check, holds: boolean, message: string): void {
    if (check === this.#check && !holds) throw new Error(`${check}: ${message}`);
  }

  #same(actual: unknown, expected: unknown, message: string): void {
    if (this.#check === 'answers') expect(actual, message).toEqual(expected);
  }

  async #admit(request: AdmitRequest): Promise<void> {
    const model = this.#model;
    const nowMs = this.#runtime.clock.now();
    const expected = model.verdict(request, nowMs);
    const { orderId, buyer, quantity, key, fingerprint, itemCode } = request;
    const before = model.ofOrder(orderId);
    const bound = model.bound.find((one) => one.buyer === buyer && one.key === key);
    const emittedBefore = this.#emitted.length;

    const verdict = await this.#gate.admit(request);

    if (bound && before.length === 0 && model.items.some(({ code }) => code === itemCode)) {
      const answer = JSON.stringify(verdict);
      const right =
        bound.fingerprint === fingerprint
          ? verdict.outcome === 'replayed' && verdict.orderId === bound.orderId
          : verdict.outcome === 'idempotency_key_reused';
      this.#demand('P5', right, `the key of order ${bound.orderId} was answered ${answer}`);
    }
    if (verdict.outcome !== 'admitted') {
      this.#demand('P5', verdict.outcome !== 'replayed' || bound !== undefined, 'a key that is bound to nothing');
      const sorted = verdict.outcome === 'limit_reached' ? { orderIds: verdict.orderIds.toSorted() } : {};
      this.#same({ ...verdict, ...sorted }, expected, 'the verdict');
      this.#same(this.#emitted.slice(emittedBefore), [], 'a refusal sends nothing');
      return;
    }
    this.#same(verdict.outcome, expected.outcome, 'the verdict');
    const { message } = verdict;
    const { epoch } = model;
    const content = { orderId, saleId: SALE, itemCode, buyer, quantity, epoch, fingerprint };
    this.#same({ ...message, ...content }, message, 'the message says what was asked');
    if (before.length > 0) {
      const slots = before.map(({ slot }) => slot);
      this.#same(message.slots, slots, 'an order id sent again gets the same answer');
      this.#same(this.#emitted.slice(emittedBefore), [], 'and is not sent twice');
      return;
    }
    this.#same(message.key, key, 'the key travels with the message');
    this.#same(this.#emitted.slice(emittedBefore), [message], 'an admission sends its message');
    const fault = model.slotFaults(buyer, quantity, message.slots);
    this.#demand('P2', fault === null, `${buyer}: ${fault}`);
    model.admit(request, message.slots, nowMs);
    this.#admitted.push({ orderId, buyer, key });
    const units = model.ofBuyer(buyer).length;
    this.#demand('P2', units <= model.perBuyer, `${buyer} was lifted to ${units} of ${model.perBuyer} units`);
  }

  async #deliverTotal({ code, total, rev }: { code: string; total: number; rev: number }): Promise<void> {
    const item = this.#model.items.find((one) => one.code === code)!;
    await this.#gate.applyTotal(SALE, item.id, total, rev);
    if (rev > item.rev) Object.assign(item, { total, rev });
  }

  async #deliverSale(sale: { version: number; perBuyer: number; paused: boolean; closed: boolean }): Promise<void> {
    const { opensAtMs, closesAtMs } = this.#model;
    await this.#gate.applySale(SALE, { ...sale, opensAtMs, closesAtMs, payWithinSeconds: 900 });
    if (sale.version > this.#model.version) Object.assign(this.#model, sale);
  }

  async #install(epoch: number): Promise<void> {
    const { items, opensAtMs, closesAtMs, perBuyer, paused, closed, version, units, bound } = this.#model;
    const orders = [...new Set(units.filter(({ queued }) => !queued).map(({ orderId }) => orderId))];
    await this.#gate.install(
      paged(
        {
          saleId: SALE,
          epoch,
          opensAtMs,
          closesAtMs,
          perBuyer,
          paused,
          closed,
          version,
          payWithinSeconds: 900,
          mayAdmit: true,
          items: items.map((item) => ({ ...item, price: { amount: 100, currency: 'CNY' } })),
          holds: orders.map((orderId) => {
            const mine = units.filter((unit) => unit.orderId === orderId);
            const itemId = items.find(({ code }) => code === mine[0]!.item)!.id;
            return { orderId, itemId, buyer: mine[0]!.buyer, slots: mine.map(({ slot }) => slot) };
          }),
          keys: bound.map(({ atMs, ...key }) => ({ ...key, boundAtMs: atMs })),
        },
        2,
      ),
    );
  }

  async #views(): Promise<ItemView[]> {
    return (await this.#gate.view(SALE))!;
  }

  async #judge(before: ItemView[], returned: { code: string; units: number } | null): Promise<void> {
    const model = this.#model;
    for (const [at, view] of (await this.#views()).entries()) {
      const { code, total, free, queued, held, house, blocked } = view;
      const counts = JSON.stringify(view);
      const live = model.live(code).length;
      this.#demand('P9', free + queued + held + house + blocked === total, `the parts are not the total: ${counts}`);
      this.#demand('P9', Math.min(queued, held, house) >= 0, `a count below zero: ${counts}`);
      this.#demand('P9', queued + held === live, `${live} units of live orders: ${counts}`);
      this.#demand('P1', live <= total - blocked - house, `${live} units of live orders: ${counts}`);
      this.#demand('P1', queued + held <= total && free >= 0, `more is held than there is: ${counts}`);
      if (returned) {
        const units = code === returned.code ? returned.units : 0;
        const came = free - before[at]!.free;
        this.#demand('P4', came === units, `${came} units of ${code} came back instead of ${units}`);
      }
      const item = model.items.find((one) => one.code === code)!;
      this.#same(
        view,
        {
          itemId: item.id,
          code,
          total: item.total,
          rev: item.rev,
          blocked: item.blocked,
          free: model.free(code),
          queued: model.live(code).filter((unit) => unit.queued).length,
          held: model.live(code).filter((unit) => !unit.queued).length,
          house: model.house.filter((unit) => unit.item === code).length,
        },
        'the counts',
      );
    }
  }
}

describe('the gate under random programs', () => {
  const names: Record<Check, string> = {
    answers: 'every answer and every count is the model’s',
    P1: 'P1: units of live orders never exceed the total',
    P2: 'P2: no admission lifts a buyer above the limit in force, and slots are distinct and within it',
    P4: 'P4: every unit comes back exactly once, whatever is repeated',
    P5: 'P5: a bound key is answered with its order, whatever has happened since',
    P9: 'P9: total = free + queued + held + house + blocked',
  };

  for (const [check, name] of Object.entries(names) as [Check, string][]) {
    it(
      name,
      async () => {
        const runs = check === 'answers' ? { short: 300, long: 10_000 } : { short: 300, long: 5_000 };
        const parameters = seeded<[Program]>(`gate ${check}`, runs);
        await fc.assert(
          fc.asyncProperty(program, async (program) => {
            const run = new Run(program, check);
            await run.start();
            for (const op of [...program.ops, program.end, ...program.afterwards]) await run.step(op);
          }),
          parameters,
        );
      },
      LONG_TIMEOUT_MS,
    );
  }
});
