import { type Random, seededRandom } from '../../src/base/random.ts';
import type { Order } from '../../src/views/present.ts';
import { ConnectionLost, type CrowdClient, type CrowdReply } from './crowd-client.ts';

/** One request of a buyer and its answer: the evidence that the judges compare with the ledger. */
export interface Try {
  saleId: string;
  buyer: string;
  item: string;
  quantity: number;
  key: string | undefined;
  sentAtMs: number;
  /** Infinity if no answer came: the outcome is unknown. */
  answeredAtMs: number;
  /** 0 if no answer came. */
  status: number;
  code: string | null;
  replayed: boolean;
  order: Order | null;
}

export interface Wish {
  saleId: string;
  buyer: string;
  item?: string;
  quantity?: number;
  key?: string | undefined;
}

const BUSY_TRIES_MAX = 50;
/** The first few are enough. */
const STRANGE_MAX = 5;

/** Sends orders and keeps every answer. */
export class CrowdRecord {
  readonly tries: Try[] = [];
  /** Answers that are neither an order nor a refusal of the contract, as text; a healthy run has none. */
  readonly strange: string[] = [];

  /** Places one order. Retries a 503 `overloaded`, as a client would; every other answer is recorded. */
  async place(client: CrowdClient, wish: Wish): Promise<Try> {
    for (let busy = 0; ; busy++) {
      const one = await this.#once(client, wish);
      if (one.code !== 'overloaded' || busy === BUSY_TRIES_MAX) return one;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }

  /** All orders that buyers were told they have. */
  accepted(): Map<string, Try> {
    const accepted = new Map<string, Try>();
    for (const one of this.tries) if (one.order && !accepted.has(one.order.id)) accepted.set(one.order.id, one);
    return accepted;
  }

  async #once(client: CrowdClient, { saleId, buyer, item = 'voucher', quantity = 1, key }: Wish): Promise<Try> {
    let reply: CrowdReply | null = null;
    const startedAtMs = performance.now();
    try {
      reply = await client.send({ path: `/v1/sales/${saleId}/orders`, buyer, key, body: { item, quantity } });
    } catch (error) {
      if (!(error instanceof ConnectionLost)) throw error;
    }
    const one: Try = {
      saleId,
      buyer,
      item,
      quantity,
      key,
      sentAtMs: reply?.sentAtMs ?? startedAtMs,
      answeredAtMs: reply?.answeredAtMs ?? Number.POSITIVE_INFINITY,
      status: reply?.status ?? 0,
      code: reply === null || isOrder(reply) ? null : String(reply.body.code),
      replayed: reply?.replayed ?? false,
      order: reply !== null && isOrder(reply) ? (reply.body as Order) : null,
    };
    this.tries.push(one);
    const expected = reply === null || isOrder(reply) || reply.status === 409 || reply.status === 503;
    if (!expected && this.strange.length < STRANGE_MAX)
      this.strange.push(`${reply!.status} ${JSON.stringify(reply!.body)}`);
    if (reply?.status === 503 && (reply.retryAfter === null || !['overloaded', 'unavailable'].includes(one.code!))) {
      if (this.strange.length < STRANGE_MAX)
        this.strange.push(`503 without Retry-After or code: ${JSON.stringify(reply.body)}`);
    }
    return one;
  }
}

/** 201: committed. 202: queued, not decided yet (distributed only). */
function isOrder({ status }: CrowdReply): boolean {
  return status === 201 || status === 202;
}

/** The seed of a run, printed because a failure cannot be replayed without it: SEED=<seed> does. */
export function seedOf(name: string): { seed: number; random: Random; label: string } {
  const seed = Number(process.env.SEED ?? Math.floor(Math.random() * 2 ** 31));
  const label = `${name}: SEED=${seed}`;
  console.log(label);
  return { seed, random: seededRandom(seed), label };
}

export function below(random: Random, bound: number): number {
  return Math.floor(random.fraction() * bound);
}

export function oneOf<T>(random: Random, values: readonly T[]): T {
  return values[below(random, values.length)]!;
}

export function shuffled<T>(random: Random, values: readonly T[]): T[] {
  const mixed = [...values];
  for (let at = mixed.length - 1; at > 0; at--) {
    const other = below(random, at + 1);
    [mixed[at], mixed[other]] = [mixed[other]!, mixed[at]!];
  }
  return mixed;
}

/** Runs `each` over the values, `atOnce` of them at a time, until all are done or it returns false. */
export async function crowdOf<T>(values: Iterable<T>, atOnce: number, each: (value: T) => Promise<unknown>) {
  const iterator = values[Symbol.iterator]();
  let stopped = false;
  await Promise.all(
    Array.from({ length: atOnce }, async () => {
      for (let next = iterator.next(); !next.done && !stopped; next = iterator.next()) {
        if ((await each(next.value)) === false) stopped = true;
      }
    }),
  );
}
