import type { Random } from '../base/random.ts';
import type { Runtime } from '../base/runtime.ts';
import { codeOf, type Reply, retryAfterMs } from './client.ts';
import { type Answer, isComeBack } from './evidence.ts';
import type { Fleet } from './fleet.ts';
import { pause } from './pause.ts';
import { orderOf } from './remote-shop.ts';
import type { Turnstile } from './turnstile.ts';

/** One try of a buyer: with a key of its own or again with the last one, by one click or by two at once. */
export interface Try {
  newKey: boolean;
  clicks: 1 | 2;
}

const DOUBLE_CLICK_SHARE = 0.2;
const REPEAT_SHARE = 0.5;

/** What an impatient buyer will do: drawn before they enter, so that a seed gives the same crowd. */
export function planTries(random: Random, attempts: number): Try[] {
  return Array.from({ length: attempts }, (_, at) => ({
    newKey: at === 0 || random.fraction() >= REPEAT_SHARE,
    clicks: random.fraction() < DOUBLE_CLICK_SHARE ? 2 : 1,
  }));
}

/** Told to come back, a buyer does so this often; without an answer at all they are a little more stubborn. */
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
  heard: (answer: Answer, tookMs: number | null) => void;
}

export interface Buyer {
  buyer: string;
  bearer: string;
  /** The address their first click goes to; each next one goes to the next, so that keys are tried across processes. */
  firstDoor: number;
}

/** A buyer's whole visit: every try, one after the other; the clicks of one try at the same time. */
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
 * One click, and what a patient client does about it: the same key again until there is an answer, within bounds. A
 * server that is gone or out of order is left for the next one, if there is another.
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
): Promise<{ answer: Answer; reply: Reply }> {
  const sentAt = tick();
  const sentMs = runtime.clock.monotonic();
  const reply = await fleet.client(door).call('POST', path, { bearer, key, body });
  const answer: Answer = {
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

/** 201: committed. 202: queued, and to be followed. Both carry the order. */
function isAccepted(status: number): boolean {
  return status === 201 || status === 202;
}
