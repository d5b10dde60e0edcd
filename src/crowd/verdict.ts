import { isLive, ORDER_STATUSES, type OrderStatus } from '../model/order.ts';
import { type Answer, type Evidence, IN_FLIGHT, type ItemView, isComeBack, type OrderView } from './evidence.ts';
import { count, grouped } from './words.ts';

/**
 * Compares what buyers were told with what the admin's lists say. Pure: evidence in, verdict out, nothing is asked for.
 *
 * It accuses only where there is no innocent reading. The limit may have been changed, stock may have been added and
 * others may be ordering while the crowd is in: bounds are then taken at their most generous, and a comparison that
 * needs the sale to stand still is left out unless it did (`Evidence.quiet`).
 */
export type Subject = 'P1' | 'P2' | 'P3' | 'P5' | 'P9' | 'API';

export interface Finding {
  subject: Subject;
  held: boolean;
  /** One line for a person: what was promised, and the figures. */
  says: string;
  faults: number;
  /** The first few kinds of fault, in words. */
  examples: string[];
}

export interface Verdict {
  held: boolean;
  findings: Finding[];
  /** Distinct orders that buyers of this crowd were told of, by a 201. */
  sold: { orders: number; units: number; buyers: number };
  /** Answers 409 by code. */
  refused: Record<string, number>;
  /** 201s that only repeated an order the buyer had already. */
  replayed: number;
  /** Units above an item's total. */
  oversold: number;
  /** Buyers above their limit, keys with more than one order, orders told under more than one key. */
  duplicates: number;
  /** Orders told by a 201 that the ledger does not have as told. */
  lost: number;
  /** Answers and orders that the contract has no explanation for. */
  unexplained: number;
  /** Orders of this crowd that nobody was told of, since the connection or the server failed: innocent. */
  untold: number;
  /** Orders told of that have expired since: innocent. */
  expired: number;
  /** Answers 429, 503 and idempotency_in_flight, and connections that broke. */
  comeBacks: Record<string, number>;
  connectionErrors: number;
  /** Keys for which a buyer never got a yes or a no. */
  undecided: number;
}

const EXAMPLES_MAX = 5;

/** Refusals that an order of the crowd, being well-formed, may get. */
const REFUSALS = new Set(['sale_not_open', 'sale_closed', 'sale_paused', 'limit_reached', 'sold_out']);

class Faults {
  count = 0;
  readonly examples: string[] = [];

  add(words: string, times = 1): void {
    this.count += times;
    if (this.examples.length < EXAMPLES_MAX) this.examples.push(words);
  }
}

export function judge(evidence: Evidence): Verdict {
  const { answers, orders, buyerPrefix } = evidence;
  const listed = new Map(orders.map((order) => [order.id, order]));
  const told = toldOrders(answers);
  const ours = orders.filter(({ buyer }) => buyer.startsWith(buyerPrefix));

  const stock = judgeStock(evidence, listed, told);
  const limit = judgeLimit(evidence, listed, told);
  const kept = judgeKept(told, listed);
  const keys = judgeKeys(answers, told);
  const counts = judgeCounts(evidence);
  const contract = judgeContract(evidence, listed, told);

  const findings = [stock.finding, limit.finding, kept.finding, keys.finding, counts, contract.finding];
  return {
    held: findings.every(({ held }) => held),
    findings,
    sold: {
      orders: told.size,
      units: sum([...told.values()], ({ order }) => order.quantity),
      buyers: new Set([...told.values()].flatMap(({ by }) => by.map(({ buyer }) => buyer))).size,
    },
    refused: tally(answers.filter((answer) => answer.status === 409 && !isComeBack(answer)).map(({ code }) => code)),
    replayed: answers.filter(({ status, replayed }) => status === 201 && replayed).length,
    oversold: stock.oversold,
    duplicates: limit.finding.faults + keys.duplicates,
    lost: kept.finding.faults,
    unexplained: contract.finding.faults,
    untold: ours.filter((order) => live(order) && !told.has(order.id)).length - contract.phantoms,
    expired: kept.expired,
    comeBacks: tally(answers.filter(isComeBack).map(({ status, code }) => `${status} ${code ?? ''}`.trim())),
    connectionErrors: answers.filter(({ status }) => status === null).length,
    undecided: keys.undecided,
  };
}

interface Told {
  order: OrderView;
  /** Each key under which it was told; one, if all is well. */
  by: { buyer: string; key: string }[];
}

function toldOrders(answers: readonly Answer[]): Map<string, Told> {
  const told = new Map<string, Told>();
  for (const { buyer, key, order } of answers) {
    if (order === null) continue;
    const entry = told.get(order.id);
    if (entry === undefined) told.set(order.id, { order, by: [{ buyer, key }] });
    else if (!entry.by.some((one) => one.buyer === buyer && one.key === key)) entry.by.push({ buyer, key });
  }
  return told;
}

/** P1. An order that was told and is not in the list still took units: its buyer holds a yes. */
function judgeStock(
  { after, before, orders, item: asked }: Evidence,
  listed: ReadonlyMap<string, OrderView>,
  told: ReadonlyMap<string, Told>,
): { finding: Finding; oversold: number } {
  const faults = new Faults();
  const missing = [...told.values()].map(({ order }) => order).filter(({ id }) => !listed.has(id));
  let oversold = 0;
  let says = '';
  for (const item of after.items) {
    const total = Math.max(item.total, itemOf(before.items, item.code)?.total ?? 0);
    const inList = sum(orders, (order) => (order.item === item.code && live(order) ? order.quantity : 0));
    const units = inList + sum(missing, (order) => (order.item === item.code ? order.quantity : 0));
    const counted = item.queued + item.reserved + item.sold;
    const over = Math.max(units - total, counted - total, 0);
    if (over > 0) faults.add(`${item.code}: ${Math.max(units, counted)} units are sold, ${over} above its ${total}`);
    oversold += over;
    if (item.code === asked) says = `${grouped(units)} of ${count(total, 'unit')} sold`;
  }
  return { finding: finding('P1', 'never oversold', 'OVERSOLD', says, faults), oversold };
}

/** P2, for the buyers of this crowd: others may have bought under a higher limit that was lowered since. */
function judgeLimit(
  { after, before, orders, buyerPrefix }: Evidence,
  listed: ReadonlyMap<string, OrderView>,
  told: ReadonlyMap<string, Told>,
): { finding: Finding } {
  const faults = new Faults();
  const perBuyer = Math.max(before.perBuyer, after.perBuyer);
  const units = new Map<string, number>();
  const add = (buyer: string, { quantity }: OrderView): void =>
    void units.set(buyer, (units.get(buyer) ?? 0) + quantity);
  for (const order of orders) if (order.buyer.startsWith(buyerPrefix) && live(order)) add(order.buyer, order);
  for (const { order, by } of told.values()) if (!listed.has(order.id)) add(by[0]!.buyer, order);
  for (const [buyer, held] of units)
    if (held > perBuyer) faults.add(`${buyer} has ${held} units, the limit is ${perBuyer}`);
  return { finding: finding('P2', 'limit kept', 'LIMIT BROKEN', `nobody has more than ${perBuyer}`, faults) };
}

/** P3. */
function judgeKept(
  told: ReadonlyMap<string, Told>,
  listed: ReadonlyMap<string, OrderView>,
): { finding: Finding; expired: number } {
  const faults = new Faults();
  let expired = 0;
  for (const { order, by } of told.values()) {
    const stored = listed.get(order.id);
    const { buyer } = by[0]!;
    if (stored === undefined) faults.add(`order ${order.id}, told to ${buyer}, is not in the ledger`);
    else if (stored.buyer !== buyer) faults.add(`order ${order.id}, told to ${buyer}, belongs to ${stored.buyer}`);
    else if (stored.item !== order.item || stored.quantity !== order.quantity)
      faults.add(
        `order ${order.id} was told as ${order.quantity} × ${order.item}, stored as ${stored.quantity} × ${stored.item}`,
      );
    else if (stored.status === 'expired') expired++;
    else if (!live(stored)) faults.add(`order ${order.id}, told to ${buyer}, is ${stored.status}`);
  }
  return {
    finding: finding(
      'P3',
      'nothing lost',
      'LOST',
      `each of the ${count(told.size, 'order')} told by a 201 is in the ledger`,
      faults,
    ),
    expired,
  };
}

/** P5. */
function judgeKeys(
  answers: readonly Answer[],
  told: ReadonlyMap<string, Told>,
): { finding: Finding; duplicates: number; undecided: number } {
  const faults = new Faults();
  let duplicates = 0;
  let undecided = 0;
  let repeats = 0;
  const byKey = Map.groupBy(answers, ({ buyer, key }) => `${buyer}\n${key}`);
  for (const sameKey of byKey.values()) {
    const { key } = sameKey[0]!;
    repeats += sameKey.length - 1;
    if (sameKey.every((answer) => answer.status === null || isComeBack(answer))) undecided++;
    const ordered = sameKey.filter(({ order }) => order !== null);
    const ids = new Set(ordered.map(({ order }) => order!.id));
    if (ids.size > 1) {
      duplicates++;
      faults.add(`key ${key} was given ${ids.size} orders: ${[...ids].join(', ')}`);
    } else if (ordered.filter(({ replayed }) => !replayed).length > 1) {
      faults.add(`key ${key} was given order ${[...ids][0]} again without Idempotent-Replayed`);
    }
    const knownAt = Math.min(...ordered.map(({ answeredAt }) => answeredAt));
    const refused = sameKey.find(
      (answer) => answer.sentAt > knownAt && answer.status !== 201 && answer.status !== null && !isComeBack(answer),
    );
    if (refused)
      faults.add(`key ${key} had its order and was then refused: ${refused.status} ${refused.code ?? ''}`.trim());
  }
  for (const { order, by } of told.values()) {
    if (by.length === 1) continue;
    duplicates++;
    faults.add(`order ${order.id} was given to ${by.map(({ key }) => key).join(' and ')}`);
  }
  const says = `${count(byKey.size, 'key')}, ${count(repeats, 'repeat')}, no second order`;
  return {
    finding: finding('P5', 'one effect per key', 'A KEY HAD ANOTHER EFFECT', says, faults),
    duplicates,
    undecided,
  };
}

/** P9. */
function judgeCounts({ after, orders, quiet, item: asked }: Evidence): Finding {
  const faults = new Faults();
  let says = '';
  for (const item of after.items) {
    const { code, total, free, queued, reserved, sold, blocked } = item;
    const parts = `free ${free} + queued ${queued} + reserved ${reserved} + sold ${sold} + blocked ${blocked}`;
    const all = free + queued + reserved + sold + blocked;
    if (all !== total) faults.add(`${code}: ${parts} = ${all}, not ${total}`);
    if (Math.min(free, queued, reserved, sold, blocked) < 0) faults.add(`${code}: a count is below zero: ${parts}`);
    if (code === asked) says = `${parts} = ${total}`;
    if (!quiet) continue;
    for (const [status, units] of [['reserved', reserved] as const, ['paid', sold] as const]) {
      const inList = sum(orders, (order) => (order.item === code && order.status === status ? order.quantity : 0));
      if (inList !== units) faults.add(`${code}: the sale counts ${units} units ${status}, its orders have ${inList}`);
    }
  }
  const known = new Set(after.items.map(({ code }) => code));
  for (const { id, item } of orders)
    if (!known.has(item)) faults.add(`order ${id} is for ${item}, which is not on sale`);
  return finding(
    'P9',
    'the counts add up',
    'THE COUNTS DO NOT ADD UP',
    quiet ? says : `${says} (still moving: others are ordering)`,
    faults,
  );
}

/** Every answer is one the contract has for a well-formed order, given for a reason. */
function judgeContract(
  evidence: Evidence,
  listed: ReadonlyMap<string, OrderView>,
  told: ReadonlyMap<string, Told>,
): { finding: Finding; phantoms: number } {
  const { answers, orders, before, after, quantity } = evidence;
  const faults = new Faults();
  const odd = answers.filter((answer) => !isExplained(answer, evidence)).map(wordsOf);
  for (const [words, times] of Object.entries(tally(odd))) faults.add(`${words}, ${times} times`, times);

  const byBuyer = Map.groupBy(answers, ({ buyer }) => buyer);
  const perBuyerMin = Math.min(before.perBuyer, after.perBuyer);
  const perBuyerMax = Math.max(before.perBuyer, after.perBuyer);
  const heldBy = Map.groupBy(orders, ({ buyer }) => buyer);
  let phantoms = 0;
  for (const [buyer, theirs] of byBuyer) {
    const inDoubt = theirs.some(({ status, code }) => status === null || status >= 500 || code === IN_FLIGHT);
    const held = heldBy.get(buyer) ?? [];
    const untold = held.filter((order) => live(order) && !told.has(order.id));
    if (!inDoubt) {
      phantoms += untold.length;
      for (const { id } of untold) faults.add(`order ${id} is in the ledger, and ${buyer} was never told of it`);
    }
    const refusedByLimit = theirs.some(({ code }) => code === 'limit_reached');
    const known = new Map([...held, ...theirs.flatMap(({ order }) => order ?? [])].map((order) => [order.id, order]));
    const units = sum([...known.values()], (order) => order.quantity);
    if (refusedByLimit && !inDoubt && units + quantity <= perBuyerMin)
      faults.add(`${buyer} has ${units} of ${perBuyerMin} and was refused limit_reached`);
    if (theirs.some((answer) => isLimitMissed(answer, theirs, listed, perBuyerMax, quantity)))
      faults.add(`${buyer} has all of their ${perBuyerMax} and was told sold_out, not limit_reached`);
  }

  const now = itemOf(after.items, evidence.item);
  const ended = orders.some((order) => order.item === evidence.item && !live(order));
  const stood = now !== undefined && now.total === itemOf(before.items, evidence.item)?.total && !ended;
  const soldOut = answers.filter(({ code }) => code === 'sold_out').length;
  // Free units only become fewer in such a sale: what is free now was free then.
  if (evidence.quiet && stood && now.free >= quantity && soldOut > 0)
    faults.add(`${soldOut} answers were sold_out, and ${now.free} units are still free`);
  return {
    finding: finding('API', 'every answer explained', 'UNEXPLAINED', count(answers.length, 'answer'), faults),
    phantoms,
  };
}

function isExplained(answer: Answer, { item, quantity }: Evidence): boolean {
  const { status, code, order, buyer } = answer;
  if (status === null || status === 429) return true;
  if (status === 503) return code === 'overloaded' || code === 'unavailable';
  if (status === 409) return isComeBack(answer) || (code !== null && REFUSALS.has(code));
  if (status !== 201 || order === null) return false;
  return order.status === 'reserved' && order.buyer === buyer && order.item === item && order.quantity === quantity;
}

function wordsOf({ status, code, order }: Answer): string {
  if (status !== 201) return `${status} ${code ?? 'without a code'}`;
  return order === null ? '201 without an order' : '201 with an order that was not asked for';
}

/** sold_out for a new key of a buyer who knew, when sending it, that the limit was used up: limit_reached comes first. */
function isLimitMissed(
  answer: Answer,
  theirs: readonly Answer[],
  listed: ReadonlyMap<string, OrderView>,
  perBuyer: number,
  quantity: number,
): boolean {
  if (answer.code !== 'sold_out') return false;
  const known = theirs.filter(
    ({ order, key, answeredAt }) => order !== null && key !== answer.key && answeredAt < answer.sentAt,
  );
  const ids = new Set(known.map(({ order }) => order!.id));
  // An order that ended in the meantime gave its place back.
  if ([...ids].some((id) => listed.has(id) && !live(listed.get(id)!))) return false;
  return ids.size > 0 && (ids.size + 1) * quantity > perBuyer;
}

function finding(subject: Subject, promise: string, broken: string, figures: string, faults: Faults): Finding {
  const held = faults.count === 0;
  const says = held ? `${promise}: ${figures}` : `${broken}: ${count(faults.count, 'fault')}`;
  return { subject, held, says, faults: faults.count, examples: faults.examples };
}

function live({ status }: OrderView): boolean {
  return (ORDER_STATUSES as readonly string[]).includes(status) && isLive(status as OrderStatus);
}

function itemOf(items: readonly ItemView[], code: string): ItemView | undefined {
  return items.find((item) => item.code === code);
}

function sum<T>(values: readonly T[], of: (value: T) => number): number {
  return values.reduce((total, value) => total + of(value), 0);
}

function tally(words: readonly (string | null)[]): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const word of words) counts[word ?? 'without a code'] = (counts[word ?? 'without a code'] ?? 0) + 1;
  return counts;
}
