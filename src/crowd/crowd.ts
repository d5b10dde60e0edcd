import type { Random } from '../base/random.ts';
import type { Runtime } from '../base/runtime.ts';
import { planTries, type Try, type Visit, visitShop } from './buyer.ts';
import { Ear } from './ear.ts';
import type { BuyerAnswer, Following, ItemView, SaleView } from './evidence.ts';
import { Fleet } from './fleet.ts';
import { Follower } from './follower.ts';
import { type CrowdFigures, type CrowdTerms, People } from './people.ts';
import type { Tally } from './progress.ts';
import { cannotStart } from './reads.ts';
import { RemoteShop } from './remote-shop.ts';
import { judge, type Verdict } from './verdict.ts';

export interface CrowdOptions extends CrowdTerms {
  saleId: string;
  buyers: number;
  /** Null: the first counted item with free stock, otherwise the first counted item. */
  item: string | null;
  quantity: number;
  /** Units that must be free when the crowd enters; null: leave the stock as it is. */
  topUp: number | null;
}

/** All results; `--json` prints this object. */
export interface CrowdReport extends CrowdFigures {
  /** The first of `urls`. */
  url: string;
  sale: { id: string; name: string; state: string; perBuyer: number };
  item: string;
  quantity: number;
  buyers: number;
  topUpAdded: number;
  freeBefore: number;
  /** Null if the lists could not be read afterwards; `noVerdict` says why. */
  verdict: Verdict | null;
  noVerdict: string | null;
}

/** Enough for a thousand reads a second, without being a crowd of its own. */
const FOLLOW_CONNECTIONS = 10;

export interface Watching {
  /** Aborted by Ctrl-C: no more buyers enter, and the verdict covers what is known. */
  interrupt: AbortSignal;
  /** Called once, before anything takes time. */
  begins(report: Pick<CrowdReport, 'sale' | 'item' | 'freeBefore' | 'topUpAdded'>): void;
  /** Called once after that, with a function that returns the progress. */
  progress(tally: () => Tally): void;
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

    const { people, answers, following } = await goIn({
      options,
      item: item.code,
      fleet,
      followers,
      width,
      watching,
      runtime,
    });

    let verdict: Verdict | null = null;
    let noVerdict: string | null = null;
    try {
      const patient = following.orders.every(({ end }) => end !== null) && people.endedEarly === null;
      const lists = await shop.settled(patient);
      const buyerPrefix = people.prefix;
      verdict = judge({ buyerPrefix, item: item.code, quantity, answers, following, before, ...lists });
    } catch (error) {
      noVerdict = (error as Error).message;
    }
    const figures = people.figures(answers);
    return { url: figures.urls[0]!, ...known, quantity, buyers: options.buyers, ...figures, verdict, noVerdict };
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
  people: People<Try[]>;
  answers: BuyerAnswer[];
  following: Following;
}

/** Lets all buyers visit the shop, then follows the queued orders until they are decided. */
async function goIn({ options, item, fleet, followers, width, watching, runtime }: Going): Promise<Gone> {
  const people = new People({
    terms: options,
    count: options.buyers,
    plan: (random) => planTries(random, options.attempts),
    fleet,
    interrupt: watching.interrupt,
    runtime,
  });
  const { tally, random, stop } = people;
  watching.progress(() => tally);
  const tokenOf = await people.tokens();

  const follower = new Follower({ fleet: followers, width, runtime, decided: (order) => ear.decided(order) });
  const ear = new Ear({ tally, follower, tokenOf });
  const visit: Omit<Visit, 'turnstile'> = {
    fleet,
    runtime,
    random,
    path: `/v1/sales/${encodeURIComponent(options.saleId)}/orders`,
    body: { item, quantity: options.quantity },
    stop,
    tick: counter(),
    heard: (answer, tookMs) => {
      ear.hear(answer);
      people.heard(tookMs);
    },
  };
  await people.visit('orders', shuffled(people.all, random), ({ name, plan, firstDoor }, turnstile) =>
    visitShop({ buyer: name, bearer: tokenOf(name), firstDoor }, plan, { ...visit, turnstile }),
  );

  const { size, left } = follower;
  if (left > 0) Object.assign(tally, { stage: 'queued', done: size - left, of: size });
  const following = await follower.finish(options.waitSeconds * 1000, watching.interrupt);
  return { people, answers: ear.answers, following };
}

function counter(): () => number {
  let ticks = 0;
  return () => ticks++;
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

/** Fisher–Yates. */
function shuffled<T>(values: readonly T[], random: Random): T[] {
  const order = [...values];
  for (let at = order.length - 1; at > 0; at--) {
    const other = Math.floor(random.fraction() * (at + 1));
    [order[at], order[other]] = [order[other]!, order[at]!];
  }
  return order;
}
