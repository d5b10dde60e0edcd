import { REJECT_REASONS } from '../model/outcome.ts';
import { type BuyerAnswer, type Evidence, IN_FLIGHT, type ItemView, isComeBack, type OrderView } from './evidence.ts';
import { Faults, type Finding, finding } from './faults.ts';
import { isMissing, live, type Told, type ToldOrders, toldOrders } from './told.ts';
import { count, grouped } from './words.ts';

/**
 * Compares what buyers were told with what the admin's lists say. A pure function of the evidence.
 *
 * It reports a fault only if there is no other explanation. While the crowd runs, the limit may be changed, stock may be added,
 * and others may order: so it uses the most generous bounds, and skips comparisons that need a sale at rest unless it was
 * (`Evidence.quiet`).
 */
export type Subject = 'P1' | 'P2' | 'P3' | 'P5' | 'P9' | 'API';

export interface Verdict {
  held: boolean;
  findings: Finding<Subject>[];
  /** Distinct orders that buyers of this crowd got by a 201, or by a 202 that became reserved. */
  sold: { orders: number; units: number; buyers: number };
  /** Orders that were answered 202, and how they ended. */
  queued: Queued;
  /** Answers 409 by code. */
  refused: Record<string, number>;
  /** 201s and 202s that only repeated an order that the buyer already had. */
  replayed: number;
  /** Units above an item's total. */
  oversold: number;
  /** Buyers above their limit, keys with more than one order, orders with more than one key. */
  duplicates: number;
  /** Orders that the ledger does not contain as their buyers were told. */
  lost: number;
  /** Answers and orders that the contract does not explain. */
  unexplained: number;
  /** Orders of this crowd whose answer was lost with the connection or the server: not a fault. */
  untold: number;
  /** Orders that have expired since: not a fault. */
  expired: number;
  /** Answers 429, 503 and idempotency_in_flight, and connections that broke. */
  comeBacks: Record<string, number>;
  connectionErrors: number;
  /** Keys that never got a final answer. */
  undecided: number;
}

export interface Queued {
  orders: number;
  /** Ended as reserved: sold as by a 201. */
  reserved: number;
  /** Refused later, by reason. */
  rejected: Record<string, number>;
  /** Ids of those that were not decided by the end. */
  undecided: string[];
  /** The longest time from a 202 to the read that saw it decided; null: none did. */
  longestMs: number | null;
}

/** Ids named in one line. */
const IDS_MAX = 20;

/** Refusals that a well-formed order may get. */
const REFUSALS = new Set(['sale_not_open', 'sale_closed', 'sale_paused', 'limit_reached', 'sold_out']);

export function judge(evidence: Evidence): Verdict {
  const { answers, orders, buyerPrefix } = evidence;
  const told = toldOrders(evidence);
  const sold = [...told.values()].filter(({ fate }) => fate === 'sold');
  const ours = orders.filter(({ buyer }) => buyer.startsWith(buyerPrefix));

  const queued = queuedOrders(evidence, told);
  const stock = judgeStock(evidence, told);
  const limit = judgeLimit(evidence, told);
  const kept = judgeKept(told);
  // Without any 202 there is nothing to report.
  const decided = queued.orders === 0 ? [] : [judgeDecided(evidence, told, queued)];
  const keys = judgeKeys(answers, told);
  const counts = judgeCounts(evidence);
  const contract = judgeContract(evidence, told);

  const findings = [stock.finding, limit.finding, kept.finding, ...decided, keys.finding, counts, contract.finding];
  return {
    held: findings.every(({ held }) => held),
    findings,
    sold: {
      orders: sold.length,
      units: sum(sold, ({ order }) => order.quantity),
      buyers: new Set(sold.flatMap(({ by }) => by.map(({ buyer }) => buyer))).size,
    },
    queued,
    refused: tally(answers.filter((answer) => answer.status === 409 && !isComeBack(answer)).map(({ code }) => code)),
    replayed: answers.filter(({ order, replayed }) => order !== null && replayed).length,
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

function queuedOrders({ following }: Evidence, told: ToldOrders): Queued {
  const queued = [...told.values()].filter((entry) => entry.queued);
  const having = (fate: Told['fate']): Told[] => queued.filter((entry) => entry.fate === fate);
  const tookMs = following.orders.flatMap((order) => order.tookMs ?? []);
  return {
    orders: queued.length,
    reserved: having('sold').length,
    rejected: tally(having('rejected').map((entry) => reasonOf(entry) ?? 'without a reason')),
    undecided: having('undecided').map(({ order }) => order.id),
    longestMs: tookMs.length === 0 ? null : tookMs.reduce((a, b) => Math.max(a, b)),
  };
}

function reasonOf({ stored, seen }: Told): string | null {
  return stored?.reason ?? seen?.reason ?? null;
}

/** P1. A promised order that is missing from the list still counts, because its buyer relies on it. */
function judgeStock(
  { after, before, orders, item: asked }: Evidence,
  told: ToldOrders,
): { finding: Finding<Subject>; oversold: number } {
  const faults = new Faults();
  const missing = [...told.values()].filter(isMissing).map(({ order }) => order);
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

/** P2, for the buyers of this crowd only: others may have bought under a higher limit that was lowered since. */
function judgeLimit({ after, before, orders, buyerPrefix }: Evidence, told: ToldOrders): { finding: Finding<Subject> } {
  const faults = new Faults();
  const perBuyer = Math.max(before.perBuyer, after.perBuyer);
  const units = new Map<string, number>();
  const add = (buyer: string, { quantity }: OrderView): void =>
    void units.set(buyer, (units.get(buyer) ?? 0) + quantity);
  for (const order of orders) if (order.buyer.startsWith(buyerPrefix) && live(order)) add(order.buyer, order);
  for (const entry of told.values()) if (isMissing(entry)) add(entry.by[0]!.buyer, entry.order);
  for (const [buyer, held] of units)
    if (held > perBuyer) faults.add(`${buyer} has ${held} units, the limit is ${perBuyer}`);
  return { finding: finding('P2', 'limit kept', 'LIMIT BROKEN', `nobody has more than ${perBuyer}`, faults) };
}

/** P3 for decided orders: the ledger contains each as its buyer was told. */
function judgeKept(told: ToldOrders): { finding: Finding<Subject>; expired: number } {
  const faults = new Faults();
  let expired = 0;
  let kept = 0;
  let later = 0;
  for (const entry of told.values()) {
    if (entry.fate === 'undecided') continue;
    if (entry.fate === 'sold') kept++;
    if (entry.fate === 'sold' && !entry.confirmed) later++;
    const fault = keptFault(entry);
    if (fault !== null) faults.add(fault);
    else if (entry.stored!.status === 'expired') expired++;
  }
  const told201 = later === 0 ? 'answered 201' : 'answered 201, or reserved after a 202,';
  const says = `each of the ${count(kept, 'order')} ${told201} is in the ledger`;
  return { finding: finding('P3', 'nothing lost', 'LOST', says, faults), expired };
}

function keptFault({ order, by, confirmed, stored, seen, fate }: Told): string | null {
  const { buyer } = by[0]!;
  const name = `order ${order.id}, ${confirmed ? 'told' : 'answered 202'} to ${buyer},`;
  // What the owner saw before the list was read; not needed after a 201.
  const was = confirmed || seen === null ? '' : `was seen ${seen.status} and `;
  if (stored === null) return `${name} ${was}is not in the ledger`;
  if (stored.buyer !== buyer) return `${name} belongs to ${stored.buyer}`;
  if (stored.item !== order.item || stored.quantity !== order.quantity)
    return `order ${order.id} was told as ${order.quantity} × ${order.item}, stored as ${stored.quantity} × ${stored.item}`;
  if (fate === 'rejected') return seen === null || seen.status === 'rejected' ? null : `${name} ${was}is rejected`;
  // A rejected order never lives again, and a committed one is not queued any more.
  const contradicted = seen?.status === 'rejected' || stored.status === 'queued';
  if (!contradicted && (stored.status === 'expired' || live(stored))) return null;
  return `${name} ${was}is ${stored.status}`;
}

const NOT_DECIDED = {
  queued: 'still queued',
  missing: 'not found (404)',
  unheard: 'still without an answer',
} as const;

/** P3 for accepted orders: each is decided, one way or the other. An interrupted crowd did not wait for that. */
function judgeDecided({ following }: Evidence, told: ToldOrders, queued: Queued): Finding<Subject> {
  const faults = new Faults();
  const last = new Map(following.orders.map((order) => [order.id, order.last]));
  if (following.waited) {
    const ways = Map.groupBy(queued.undecided, (id) => NOT_DECIDED[last.get(id) ?? 'unheard']);
    for (const [way, ids] of ways)
      faults.add(`${way} ${following.boundMs / 1000} s after the last buyer: ${idsOf(ids)}`, ids.length);
  }
  for (const entry of told.values()) {
    if (entry.fate !== 'rejected') continue;
    const reason = reasonOf(entry);
    if (reason === null || !(REJECT_REASONS as readonly string[]).includes(reason))
      faults.add(`order ${entry.order.id} was rejected ${reason === null ? 'without a reason' : `for “${reason}”`}`);
  }
  const rejected = sum(Object.values(queued.rejected), (times) => times);
  const open = queued.undecided.length === 0 ? '' : `, ${grouped(queued.undecided.length)} not waited for`;
  const says = `${count(queued.orders, 'order')}, ${grouped(queued.reserved)} reserved, ${grouped(rejected)} rejected${open}`;
  return finding('P3', 'every 202 decided', 'A 202 WAS NOT DECIDED', says, faults);
}

function idsOf(ids: readonly string[]): string {
  const more = ids.length - IDS_MAX;
  return ids.slice(0, IDS_MAX).join(', ') + (more > 0 ? ` and ${grouped(more)} more` : '');
}

/** P5. */
function judgeKeys(
  answers: readonly BuyerAnswer[],
  told: ToldOrders,
): { finding: Finding<Subject>; duplicates: number; undecided: number } {
  const faults = new Faults();
  let duplicates = 0;
  let undecided = 0;
  let repeats = 0;
  const byKey = Map.groupBy(answers, ({ buyer, key }) => `${buyer}\n${key}`);
  for (const sameKey of byKey.values()) {
    const { key } = sameKey[0]!;
    repeats += sameKey.length - 1;
    if (!sameKey.some(isAnswer)) undecided++;
    const ordered = sameKey.filter(({ order }) => order !== null);
    const byId = Map.groupBy(ordered, ({ order }) => order!.id);
    if (byId.size > 1 && !followOneAnother(byId, told)) {
      duplicates++;
      faults.add(`key ${key} was given ${byId.size} orders: ${[...byId.keys()].join(', ')}`);
    }
    for (const [id, ofId] of byId)
      if (ofId.filter(({ replayed }) => !replayed).length > 1)
        faults.add(`key ${key} was given order ${id} again without Idempotent-Replayed`);
    // A rejected order frees its key: a later refusal is about a new order.
    const bound = ordered.filter(({ order }) => told.get(order!.id)!.fate === 'sold');
    const knownAt = Math.min(...bound.map(({ answeredAt }) => answeredAt));
    const refused = sameKey.find(
      (answer) => answer.sentAt > knownAt && isAnswer(answer) && answer.status !== 201 && answer.status !== 202,
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

/** A final answer to the order: the connection held, and the server did not ask to come back. */
function isAnswer(answer: BuyerAnswer): boolean {
  return answer.status !== null && !isComeBack(answer);
}

/**
 * A key is free again once its order is rejected. So all but one of a key's orders must be rejected, and an order that has a
 * successor must not be answered again.
 */
function followOneAnother(byId: ReadonlyMap<string, readonly BuyerAnswer[]>, told: ToldOrders): boolean {
  const orders = [...byId].map(([id, answers]) => ({
    stands: told.get(id)!.fate === 'sold',
    knownAt: Math.min(...answers.map(({ answeredAt }) => answeredAt)),
    lastSentAt: Math.max(...answers.map(({ sentAt }) => sentAt)),
  }));
  if (orders.filter(({ stands }) => stands).length > 1) return false;
  return orders.every((one) =>
    orders.every((other) => {
      if (one === other) return true;
      const oneAgain = one.lastSentAt > other.knownAt;
      const otherAgain = other.lastSentAt > one.knownAt;
      return !(oneAgain && (otherAgain || other.stands));
    }),
  );
}

/** P9. */
function judgeCounts({ after, orders, quiet, item: asked }: Evidence): Finding<Subject> {
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

/** The contract allows every answer, and the evidence explains it. */
function judgeContract(evidence: Evidence, told: ToldOrders): { finding: Finding<Subject>; phantoms: number } {
  const { answers, orders, before, after, quantity, following } = evidence;
  const faults = new Faults();
  const lagging = keysOf(answers.filter((answer) => answer.status === 202 || isInDoubt(answer)));
  const odd = answers.filter((answer) => !isExplained(answer, evidence, lagging)).map(wordsOf);
  for (const [words, times] of Object.entries(tally(odd))) faults.add(`${words}, ${times} times`, times);
  for (const [words, times] of Object.entries(following.odd))
    faults.add(`the owner of a queued order was answered ${words}, ${times} times`, times);

  const byBuyer = Map.groupBy(answers, ({ buyer }) => buyer);
  const perBuyerMin = Math.min(before.perBuyer, after.perBuyer);
  const perBuyerMax = Math.max(before.perBuyer, after.perBuyer);
  const heldBy = Map.groupBy(orders, ({ buyer }) => buyer);
  let phantoms = 0;
  for (const [buyer, theirs] of byBuyer) {
    const inDoubt = theirs.some(isInDoubt);
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
    if (theirs.some((answer) => isLimitMissed(answer, theirs, told, perBuyerMax, quantity)))
      faults.add(`${buyer} has all of their ${perBuyerMax} and was told sold_out, not limit_reached`);
  }

  const now = itemOf(after.items, evidence.item);
  const ended = orders.some((order) => order.item === evidence.item && !live(order));
  const stood = now !== undefined && now.total === itemOf(before.items, evidence.item)?.total && !ended;
  const soldOut = answers.filter(({ code }) => code === 'sold_out').length;
  // In such a sale free units only decrease: units that are free now were free then, except those held by orders that never
  // reached the ledger. There are at most as many of these as keys whose outcome was unknown at some time.
  const vanished = keysOf(answers.filter((answer) => mayHaveVanished(answer, told))).size * quantity;
  if (evidence.quiet && stood && now.free - vanished >= quantity && soldOut > 0)
    faults.add(`${soldOut} answers were sold_out, and ${now.free} units are still free`);
  return {
    finding: finding('API', 'every answer explained', 'UNEXPLAINED', count(answers.length, 'answer'), faults),
    phantoms,
  };
}

function keysOf(answers: readonly BuyerAnswer[]): ReadonlySet<string> {
  return new Set(answers.map(({ buyer, key }) => `${buyer}\n${key}`));
}

/** True if the answer leaves open whether there is an order. */
function isInDoubt({ status, code }: BuyerAnswer): boolean {
  return status === null || status >= 500 || code === IN_FLIGHT;
}

function mayHaveVanished(answer: BuyerAnswer, told: ToldOrders): boolean {
  // `overloaded` is answered before any unit is taken.
  if (answer.order === null) return isInDoubt(answer) && answer.code !== 'overloaded';
  return told.get(answer.order.id)!.fate === 'undecided';
}

/** `lagging`: keys that may have been answered 202. A repeat of such a key shows the order in its current state. */
function isExplained(answer: BuyerAnswer, { item, quantity }: Evidence, lagging: ReadonlySet<string>): boolean {
  const { status, code, order, buyer, key, replayed } = answer;
  if (status === null || status === 429) return true;
  if (status === 503) return code === 'overloaded' || code === 'unavailable';
  if (status === 409) return isComeBack(answer) || (code !== null && REFUSALS.has(code));
  if (order === null || order.buyer !== buyer || order.item !== item || order.quantity !== quantity) return false;
  if (status === 202) return order.status === 'queued';
  if (order.status === 'reserved') return true;
  const asItIs = replayed && lagging.has(`${buyer}\n${key}`);
  return asItIs && (live(order) || order.status === 'expired') && order.status !== 'queued';
}

function wordsOf({ status, code, order }: BuyerAnswer): string {
  if (status !== 201 && status !== 202) return `${status} ${code ?? 'without a code'}`;
  return order === null ? `${status} without an order` : `${status} with an order that was not asked for`;
}

/** True for sold_out on a new key of a buyer who had already used up the limit: limit_reached takes precedence. */
function isLimitMissed(
  answer: BuyerAnswer,
  theirs: readonly BuyerAnswer[],
  told: ToldOrders,
  perBuyer: number,
  quantity: number,
): boolean {
  if (answer.code !== 'sold_out') return false;
  const known = theirs.filter(
    ({ order, key, answeredAt }) => order !== null && key !== answer.key && answeredAt < answer.sentAt,
  );
  const ids = new Set(known.map(({ order }) => order!.id));
  // An order that ended meanwhile gave its units back, and an undecided one may have.
  if ([...ids].some((id) => told.get(id)!.fate !== 'sold' || gaveBack(told.get(id)!))) return false;
  return ids.size > 0 && (ids.size + 1) * quantity > perBuyer;
}

function gaveBack({ stored }: Told): boolean {
  return stored !== null && !live(stored);
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
