import { type Random, seededRandom } from '../base/random.ts';
import type { Runtime } from '../base/runtime.ts';
import { planTries, type Try, type Visit, visitShop } from './buyer.ts';
import { Ear } from './ear.ts';
import type { BuyerAnswer, Following, ItemView, SaleView } from './evidence.ts';
import { Fleet } from './fleet.ts';
import { Follower } from './follower.ts';
import { type InFlight, newTally } from './progress.ts';
import { cannotStart, RemoteShop } from './remote-shop.ts';
import { type TokenOf, tokensFor } from './tokens.ts';
import { Turnstile } from './turnstile.ts';
import { judge, type Verdict } from './verdict.ts';

export interface CrowdOptions {
  /** The addresses of the processes of one shop; at least one. */
  urls: readonly URL[];
  saleId: string;
  buyers: number;
  attempts: number;
  /** Requests per second; null: as fast as they are answered. */
  ratePerSecond: number | null;
  connections: number;
  /** How long after the last buyer orders answered 202 may take to be decided. */
  waitSeconds: number;
  /** Null: the first counted item with free stock, otherwise the first counted item. */
  item: string | null;
  quantity: number;
  /** Units that must be free when the crowd enters; null: leave the stock as it is. */
  topUp: number | null;
  adminKey: string;
  authSecret: string | null;
  seed: number;
}

/** All results; `--json` prints this object. */
export interface CrowdReport {
  /** The first of `urls`. */
  url: string;
  urls: string[];
  sale: { id: string; name: string; state: string; perBuyer: number };
  item: string;
  quantity: number;
  buyers: number;
  entered: number;
  attempts: number;
  connections: number;
  ratePerSecond: number | null;
  seed: number;
  topUpAdded: number;
  freeBefore: number;
  /** Why the crowd ended before all buyers had entered; null: all had. */
  endedEarly: string | null;
  seconds: number;
  requests: number;
  requestsPerSecond: number;
  /** Answers by status and code; `none`: the connection broke. */
  answers: Record<string, number>;
  latencyMs: { p50: number; p95: number; p99: number; max: number } | null;
  /** Null if the lists could not be read afterwards; `noVerdict` says why. */
  verdict: Verdict | null;
  noVerdict: string | null;
}

/** Buyers per connection: one who waits before a retry leaves the connection to another. */
const INSIDE_PER_CONNECTION = 4;
/** Enough for a thousand reads a second, without being a crowd of its own. */
const FOLLOW_CONNECTIONS = 10;
/** After Ctrl-C: how long requests in flight may take. */
const LAST_ANSWERS_MS = 5_000;

export interface Watching {
  /** Aborted by Ctrl-C: no more buyers enter, and the verdict covers what is known. */
  interrupt: AbortSignal;
  /** Called once, before anything takes time. */
  begins(report: Pick<CrowdReport, 'sale' | 'item' | 'freeBefore' | 'topUpAdded'>): void;
  /** Called once after that, with a function that returns the progress. */
  progress(inFlight: () => InFlight): void;
}

/** Sends a crowd into a sale and checks whether the promises held. */
export async function sendCrowd(options: CrowdOptions, watching: Watching, runtime: Runtime): Promise<CrowdReport> {
  const { connections, quantity } = options;
  const fleet = new Fleet(options.urls, connections);
  // Following queued orders uses its own connections; otherwise buyers would wait for them.
  const width = Math.min(FOLLOW_CONNECTIONS, connections);
  const followers = new Fleet(options.urls, width);
  try {
    const shop = new RemoteShop(fleet, options, runtime);
    const found = await shop.enter();
    const item = chooseItem(found, options.item);
    const { sale: before, added } =
      options.topUp === null ? { sale: found, added: 0 } : await shop.topUp(found, item.code, options.topUp);

    const { id, name, state, perBuyer } = before;
    const known = {
      sale: { id, name, state, perBuyer },
      item: item.code,
      freeBefore: itemOf(before, item.code).free,
      topUpAdded: added,
    };
    watching.begins(known);

    const went = await goIn({ options, item: item.code, fleet, followers, width, watching, runtime });
    const { answers, following, seconds, buyerPrefix } = went;

    let verdict: Verdict | null = null;
    let noVerdict: string | null = null;
    try {
      const lists = await shop.settled(following.orders.every(({ end }) => end !== null) && went.endedEarly === null);
      verdict = judge({ buyerPrefix, item: item.code, quantity, answers, following, before, ...lists });
    } catch (error) {
      noVerdict = (error as Error).message;
    }
    const urls = options.urls.map(({ href }) => href);
    return {
      url: urls[0]!,
      urls,
      ...known,
      quantity,
      buyers: options.buyers,
      entered: went.entered,
      attempts: options.attempts,
      connections,
      ratePerSecond: options.ratePerSecond,
      seed: options.seed,
      endedEarly: went.endedEarly,
      seconds,
      requests: answers.length,
      requestsPerSecond: seconds > 0 ? answers.length / seconds : 0,
      answers: byStatus(answers),
      latencyMs: percentiles(went.latenciesMs),
      verdict,
      noVerdict,
    };
  } finally {
    fleet.close();
    followers.close();
  }
}

interface Going {
  options: CrowdOptions;
  item: string;
  fleet: Fleet;
  followers: Fleet;
  width: number;
  watching: Watching;
  runtime: Runtime;
}

interface Gone {
  buyerPrefix: string;
  answers: BuyerAnswer[];
  following: Following;
  latenciesMs: number[];
  entered: number;
  /** Until the last buyer left; does not include the wait for queued orders. */
  seconds: number;
  endedEarly: string | null;
}

/** Lets all buyers visit the shop, then follows the queued orders until they are decided. */
async function goIn({ options, item, fleet, followers, width, watching, runtime }: Going): Promise<Gone> {
  const { connections } = options;
  const stop = new AbortController();
  let endedEarly: string | null = null;
  const end = (reason: string): void => {
    endedEarly ??= reason;
    stop.abort();
  };
  if (watching.interrupt.aborted) end('interrupted');
  watching.interrupt.addEventListener('abort', () => end('interrupted'));

  const random = seededRandom(options.seed);
  // The seed repeats the crowd's plans; the time makes new buyers of it, who have not bought here before.
  const buyerPrefix = `crowd-${options.seed.toString(36)}-${runtime.clock.now().toString(36)}-`;
  const people = peopleOf(buyerPrefix, options, random);

  const inFlight = newTally(options.buyers);
  watching.progress(() => inFlight);
  const tokenOf = await tokensFor(
    people.map(({ name }) => name),
    {
      client: fleet.door(),
      // The rate limits orders, not requests for tokens.
      turnstile: new Turnstile(runtime, connections, null, stop.signal),
      runtime,
      authSecret: options.authSecret,
      stop: stop.signal,
      asked: (tokens) => {
        inFlight.done = tokens;
      },
    },
  );
  Object.assign(inFlight, { stage: 'orders', done: 0 });

  const follower = new Follower({ fleet: followers, width, runtime, decided: (order) => ear.decided(order) });
  const ear = new Ear({ runtime, inFlight, follower, tokenOf, silent: end });
  const visit: Visit = {
    fleet,
    turnstile: new Turnstile(runtime, connections, options.ratePerSecond, stop.signal),
    runtime,
    random,
    path: `/v1/sales/${encodeURIComponent(options.saleId)}/orders`,
    body: { item, quantity: options.quantity },
    stop: stop.signal,
    tick: counter(),
    heard: (answer, tookMs) => ear.hear(answer, tookMs),
  };
  const startedMs = runtime.clock.monotonic();
  const entered = await visitAll(shuffled(people, random), { visit, tokenOf, connections, inFlight });
  const seconds = (runtime.clock.monotonic() - startedMs) / 1000;

  const { size, left } = follower;
  if (left > 0) Object.assign(inFlight, { stage: 'queued', done: size - left, of: size });
  const following = await follower.finish(options.waitSeconds * 1000, watching.interrupt);
  const { answers, latenciesMs } = ear;
  return { buyerPrefix, answers, following, latenciesMs, entered, seconds, endedEarly };
}

interface Person {
  name: string;
  tries: Try[];
  firstDoor: number;
}

function peopleOf(prefix: string, { buyers, attempts }: CrowdOptions, random: Random): Person[] {
  const digits = String(buyers).length;
  return Array.from({ length: buyers }, (_, at) => ({
    name: prefix + String(at + 1).padStart(digits, '0'),
    tries: planTries(random, attempts),
    firstDoor: at,
  }));
}

function counter(): () => number {
  let ticks = 0;
  return () => ticks++;
}

interface Visiting {
  visit: Visit;
  tokenOf: TokenOf;
  connections: number;
  inFlight: InFlight;
}

/** Runs the visits, a bounded number at a time; returns how many were started. */
async function visitAll(
  people: readonly Person[],
  { visit, tokenOf, connections, inFlight }: Visiting,
): Promise<number> {
  const { stop, fleet, runtime } = visit;
  let entered = 0;
  const oneAfterAnother = async (): Promise<void> => {
    while (entered < people.length && !stop.aborted) {
      const { name, tries, firstDoor } = people[entered++]!;
      await visitShop({ buyer: name, bearer: tokenOf(name), firstDoor }, tries, visit);
      if (!stop.aborted) inFlight.done++;
    }
  };
  const inside = Math.min(people.length, connections * INSIDE_PER_CONNECTION);
  const cutOff = (): void => void runtime.timers.after(LAST_ANSWERS_MS, () => fleet.close());
  if (stop.aborted) cutOff();
  else stop.addEventListener('abort', cutOff);
  await Promise.all(Array.from({ length: inside }, oneAfterAnother));
  stop.removeEventListener('abort', cutOff);
  return entered;
}

function chooseItem(sale: SaleView, code: string | null): ItemView {
  const counted = sale.items.filter(({ kind }) => kind === 'counted');
  const codes = counted.map((item) => item.code).join(', ');
  if (code === null) {
    const item = counted.find(({ free }) => free > 0) ?? counted[0];
    if (item === undefined) throw cannotStart('the sale has no counted item, and a crowd cannot order seats');
    return item;
  }
  const item = sale.items.find((one) => one.code === code);
  if (item === undefined) throw cannotStart(`the sale has no item ${code}; it has ${codes}`);
  if (item.kind !== 'counted') throw cannotStart(`${code} has seats, and a crowd can order counted items only`);
  return item;
}

function itemOf(sale: SaleView, code: string): ItemView {
  return sale.items.find((item) => item.code === code)!;
}

function byStatus(answers: readonly BuyerAnswer[]): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const { status, code } of answers) {
    const name = status === null ? 'none' : code === null ? String(status) : `${status} ${code}`;
    counts[name] = (counts[name] ?? 0) + 1;
  }
  return counts;
}

/** Fisher–Yates. */
function shuffled<T>(values: readonly T[], random: Random): T[] {
  const order = [...values];
  for (let at = order.length - 1; at > 0; at--) {
    const other = Math.floor(random.fraction() * (at + 1));
    [order[at], order[other]] = [order[other]!, order[at]!];
  }
  return order;
}

export function percentiles(valuesMs: readonly number[]): CrowdReport['latencyMs'] {
  if (valuesMs.length === 0) return null;
  const sorted = Float64Array.from(valuesMs).sort();
  const at = (share: number): number => sorted[Math.min(sorted.length - 1, Math.ceil(sorted.length * share) - 1)]!;
  return { p50: at(0.5), p95: at(0.95), p99: at(0.99), max: sorted.at(-1)! };
}
