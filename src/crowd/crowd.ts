import { type Random, seededRandom } from '../base/random.ts';
import type { Runtime } from '../base/runtime.ts';
import { planTries, visit } from './buyer.ts';
import { Client } from './client.ts';
import { type Answer, type ItemView, isComeBack, type SaleView } from './evidence.ts';
import type { Tally } from './progress.ts';
import { cannotStart, RemoteShop } from './remote-shop.ts';
import { tokensFor } from './tokens.ts';
import { Turnstile } from './turnstile.ts';
import { judge, type Verdict } from './verdict.ts';

export interface CrowdOptions {
  url: URL;
  saleId: string;
  buyers: number;
  attempts: number;
  /** Requests a second; null: as fast as they are answered. */
  ratePerSecond: number | null;
  connections: number;
  /** Null: the first counted item that has free stock, or else the first. */
  item: string | null;
  quantity: number;
  /** Units that should be free as the crowd enters; null: leave the stock as it is. */
  topUp: number | null;
  adminKey: string;
  authSecret: string | null;
  seed: number;
}

/** Everything that was found out; `--json` prints it as it is. */
export interface CrowdReport {
  url: string;
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
  /** Why it ended before all buyers had been in; null: they all were. */
  endedEarly: string | null;
  seconds: number;
  requests: number;
  requestsPerSecond: number;
  /** Answers by status and code; `none`: the connection broke. */
  answers: Record<string, number>;
  latencyMs: { p50: number; p95: number; p99: number; max: number } | null;
  /** Null: the lists could not be read afterwards, for `noVerdict`. */
  verdict: Verdict | null;
  noVerdict: string | null;
}

/** A buyer who waits to be let in again leaves their connection to another: more are in than can speak at once. */
const INSIDE_PER_CONNECTION = 4;
/** No answer from the server for so long, and the rest of the crowd stays at home. */
const SILENCE_MS_MAX = 20_000;
/** After Ctrl-C: what is in flight has this long to come back. */
const LAST_ANSWERS_MS = 5_000;

export interface Watching {
  /** Aborted by Ctrl-C: the crowd goes home, and the verdict is on what is known. */
  interrupt: AbortSignal;
  /** Called once, before anything takes time. */
  begins(report: Pick<CrowdReport, 'sale' | 'item' | 'freeBefore' | 'topUpAdded'>): void;
  /** Called once after that, with how to ask for the progress. */
  progress(tally: () => Tally): void;
}

/** Sends a crowd into a sale and finds out whether the promises held. */
export async function sendCrowd(options: CrowdOptions, watching: Watching, runtime: Runtime): Promise<CrowdReport> {
  const { url, saleId, connections, quantity } = options;
  const client = new Client(url, connections);
  try {
    const shop = new RemoteShop(client, { ...options, url: options.url.href }, runtime);
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

    const stop = new AbortController();
    let endedEarly: string | null = null;
    const end = (reason: string): void => {
      endedEarly ??= reason;
      stop.abort();
    };
    if (watching.interrupt.aborted) end('interrupted');
    watching.interrupt.addEventListener('abort', () => end('interrupted'));

    const random = seededRandom(options.seed);
    // The seed gives the same crowd again; the instant makes them other people, who have not bought here before.
    const buyerPrefix = `crowd-${options.seed.toString(36)}-${runtime.clock.now().toString(36)}-`;
    const digits = String(options.buyers).length;
    const people = Array.from(
      { length: options.buyers },
      (_, at) => buyerPrefix + String(at + 1).padStart(digits, '0'),
    );
    const plans = people.map(() => planTries(random, options.attempts));
    const turnstile = new Turnstile(runtime, connections, options.ratePerSecond, stop.signal);

    const tally: Tally = { stage: 'tokens', done: 0, of: options.buyers, sold: 0, refused: 0, requests: 0 };
    watching.progress(() => tally);
    const tokenOf = await tokensFor(people, {
      client,
      // Asking for tokens is not the crowd: the rate is for orders.
      turnstile: new Turnstile(runtime, connections, null, stop.signal),
      runtime,
      authSecret: options.authSecret,
      stop: stop.signal,
      asked: (tokens) => {
        tally.done = tokens;
      },
    });

    tally.stage = 'orders';
    tally.done = 0;

    const answers: Answer[] = [];
    const latenciesMs: number[] = [];
    let ticks = 0;
    let lastAnswerMs = runtime.clock.monotonic();
    const heard = (answer: Answer, tookMs: number | null): void => {
      answers.push(answer);
      tally.requests++;
      if (answer.status === 201 && !answer.replayed) tally.sold++;
      if (answer.status === 409 && !isComeBack(answer)) tally.refused++;
      const nowMs = runtime.clock.monotonic();
      if (tookMs !== null) {
        latenciesMs.push(tookMs);
        lastAnswerMs = nowMs;
      } else if (nowMs - lastAnswerMs > SILENCE_MS_MAX) {
        end(`the server has not answered for ${SILENCE_MS_MAX / 1000} s`);
      }
    };

    const startedMs = runtime.clock.monotonic();
    const order = shuffled(people.length, random);
    let entered = 0;
    const oneAfterAnother = async (): Promise<void> => {
      while (entered < order.length && !stop.signal.aborted) {
        const at = order[entered++]!;
        await visit(people[at]!, tokenOf(people[at]!), plans[at]!, {
          client,
          turnstile,
          runtime,
          random,
          path: `/v1/sales/${encodeURIComponent(saleId)}/orders`,
          body: { item: item.code, quantity },
          stop: stop.signal,
          tick: () => ticks++,
          heard,
        });
        if (!stop.signal.aborted) tally.done++;
      }
    };
    const inside = Math.min(options.buyers, connections * INSIDE_PER_CONNECTION);
    const cutOff = (): void => void runtime.timers.after(LAST_ANSWERS_MS, () => client.close());
    if (stop.signal.aborted) cutOff();
    else stop.signal.addEventListener('abort', cutOff);
    await Promise.all(Array.from({ length: inside }, oneAfterAnother));
    stop.signal.removeEventListener('abort', cutOff);
    const seconds = (runtime.clock.monotonic() - startedMs) / 1000;

    let verdict: Verdict | null = null;
    let noVerdict: string | null = null;
    try {
      const lists = await shop.settled();
      verdict = judge({ buyerPrefix, item: item.code, quantity, answers, before, ...lists });
    } catch (error) {
      noVerdict = (error as Error).message;
    }
    return {
      url: url.href,
      ...known,
      quantity,
      buyers: options.buyers,
      entered,
      attempts: options.attempts,
      connections,
      ratePerSecond: options.ratePerSecond,
      seed: options.seed,
      endedEarly,
      seconds,
      requests: answers.length,
      requestsPerSecond: seconds > 0 ? answers.length / seconds : 0,
      answers: byStatus(answers),
      latencyMs: percentiles(latenciesMs),
      verdict,
      noVerdict,
    };
  } finally {
    client.close();
  }
}

function chooseItem(sale: SaleView, code: string | null): ItemView {
  const counted = sale.items.filter(({ kind }) => kind === 'counted');
  const codes = counted.map((item) => item.code).join(', ');
  if (code === null) {
    const item = counted.find(({ free }) => free > 0) ?? counted[0];
    if (item === undefined) throw cannotStart('the sale has no counted item: a crowd does not choose seats');
    return item;
  }
  const item = sale.items.find((one) => one.code === code);
  if (item === undefined) throw cannotStart(`the sale has no item ${code}; it has ${codes}`);
  if (item.kind !== 'counted') throw cannotStart(`${code} has seats: a crowd orders counted items only`);
  return item;
}

function itemOf(sale: SaleView, code: string): ItemView {
  return sale.items.find((item) => item.code === code)!;
}

function byStatus(answers: readonly Answer[]): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const { status, code } of answers) {
    const name = status === null ? 'none' : code === null ? String(status) : `${status} ${code}`;
    counts[name] = (counts[name] ?? 0) + 1;
  }
  return counts;
}

/** Fisher and Yates. */
function shuffled(length: number, random: Random): number[] {
  const order = Array.from({ length }, (_, at) => at);
  for (let at = length - 1; at > 0; at--) {
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
