import type { Random } from '../base/random.ts';
import { type Clicked, type Clicking, click } from './click.ts';
import { codeOf } from './client.ts';
import { type BuyerAnswer, isComeBack } from './evidence.ts';
import type { Fleet } from './fleet.ts';
import { orderOf } from './remote-shop.ts';

/** One attempt of a buyer: with a new key or the last one again, by one click or by two at once. */
export interface Try {
  newKey: boolean;
  clicks: 1 | 2;
}

const DOUBLE_CLICK_SHARE = 0.2;
const REPEAT_SHARE = 0.5;

/** Plans what an impatient buyer will do. Drawn before the buyer enters, so that a seed gives the same crowd. */
export function planTries(random: Random, attempts: number): Try[] {
  return Array.from({ length: attempts }, (_, at) => ({
    newKey: at === 0 || random.fraction() >= REPEAT_SHARE,
    clicks: random.fraction() < DOUBLE_CLICK_SHARE ? 2 : 1,
  }));
}

export interface Visit extends Clicking {
  fleet: Fleet;
  path: string;
  body: { item: string; quantity: number };
  /** The next tick of the crowd's counter. */
  tick: () => number;
  heard: (answer: BuyerAnswer, tookMs: number | null) => void;
}

export interface Buyer {
  buyer: string;
  bearer: string;
  /** The address of the first click. Each further click goes to the next address, so that keys are used across processes. */
  firstDoor: number;
}

/** A buyer's whole visit: all attempts one after the other; the clicks of one attempt at the same time. */
export async function visitShop({ buyer, bearer, firstDoor }: Buyer, tries: readonly Try[], on: Visit): Promise<void> {
  let keys = 0;
  let door = firstDoor;
  for (const { newKey, clicks } of tries) {
    if (on.stop.aborted) return;
    if (newKey) keys++;
    const key = `${buyer}.${keys}`;
    await Promise.all(
      Array.from({ length: clicks }, () => click(door++, (at) => ask({ buyer, bearer, key }, at, on), on)),
    );
  }
}

interface Order {
  buyer: string;
  bearer: string;
  key: string;
}

async function ask(
  { buyer, bearer, key }: Order,
  door: number,
  { fleet, runtime, path, body, tick, heard }: Visit,
): Promise<Clicked> {
  const sentAt = tick();
  const sentMs = runtime.clock.monotonic();
  const reply = await fleet.client(door).call('POST', path, { bearer, key, body });
  const answer: BuyerAnswer = {
    buyer,
    key,
    sentAt,
    answeredAt: tick(),
    status: reply.ok ? reply.status : null,
    code: reply.ok ? codeOf(reply.body) : null,
    order: reply.ok && isAccepted(reply.status) ? orderOf(reply.body) : null,
    replayed: reply.ok && reply.headers['idempotent-replayed'] === 'true',
  };
  heard(answer, reply.ok ? runtime.clock.monotonic() - sentMs : null);
  return { reply, comeBack: isComeBack(answer) };
}

/** 201: committed. 202: queued, must be followed. Both carry the order. */
function isAccepted(status: number): boolean {
  return status === 201 || status === 202;
}
