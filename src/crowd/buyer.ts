import type { Random } from '../base/random.ts';
import type { Runtime } from '../base/runtime.ts';
import { codeOf, type Reply, retryAfterMs } from './client.ts';
import { type BuyerAnswer, isComeBack } from './evidence.ts';
import type { Fleet } from './fleet.ts';
import { pause } from './pause.ts';
import { orderOf } from './remote-shop.ts';
import type { Turnstile } from './turnstile.ts';

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

/** How often a buyer retries when told to come back later; without any answer, a little more often. */
const COME_BACKS_MAX = 10;
const RECONNECTS_MAX = 20;
const RECONNECT_MS_MAX = 1_000;

export interface Visit {
  fleet: Fleet;
  turnstile: Turnstile;
  runtime: Runtime;
  random: Random;
  path: string;
  body: { item: string; quantity: number };
  stop: AbortSignal;
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
    await Promise.all(Array.from({ length: clicks }, () => order({ buyer, bearer, key, door: door++ }, on)));
  }
}

interface Click {
  buyer: string;
  bearer: string;
  key: string;
  door: number;
}

/**
 * One click, with the retries of a patient client: it sends the same key again until there is an answer, within bounds. It
 * leaves a server that is down or failing for the next address, if there is one.
 */
async function order(click: Click, on: Visit): Promise<void> {
  let { door } = click;
  let comeBacks = 0;
  let reconnects = 0;
  for (;;) {
    const answered = await on.turnstile.pass(async () => (on.stop.aborted ? null : ask({ ...click, door }, on)));
    if (answered === null) return;
    const { answer, reply } = answered;
    let waitMs: number;
    if (!reply.ok) {
      if (reconnects++ === RECONNECTS_MAX) return;
      waitMs = Math.min(50 * 2 ** reconnects, RECONNECT_MS_MAX) * (0.5 + on.random.fraction() / 2);
    } else {
      if (!isComeBack(answer) || comeBacks++ === COME_BACKS_MAX) return;
      waitMs = retryAfterMs(reply);
    }
    if (!reply.ok || reply.status === 503) door++;
    await pause(on.runtime.timers, waitMs, on.stop);
    if (on.stop.aborted) return;
  }
}

async function ask(
  { buyer, bearer, key, door }: Click,
  { fleet, runtime, path, body, tick, heard }: Visit,
): Promise<{ answer: BuyerAnswer; reply: Reply }> {
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
  return { answer, reply };
}

/** 201: committed. 202: queued, must be followed. Both carry the order. */
function isAccepted(status: number): boolean {
  return status === 201 || status === 202;
}
