import type { Random } from '../base/random.ts';
import type { Runtime } from '../base/runtime.ts';
import { pause } from '../base/timers.ts';
import { type Reply, retryAfterMs } from './client.ts';
import type { Turnstile } from './turnstile.ts';

/** How often a client retries when told to come back later; without any answer, a little more often. */
const COME_BACKS_MAX = 10;
const RECONNECTS_MAX = 20;
const RECONNECT_MS_MAX = 1_000;

export interface Clicking {
  readonly turnstile: Turnstile;
  readonly runtime: Runtime;
  readonly random: Random;
  readonly stop: AbortSignal;
}

export interface Clicked {
  readonly reply: Reply;
  /** The server asks to come back later: the same is sent again. */
  readonly comeBack: boolean;
}

/**
 * One click, with the retries of a patient client: it sends the same again until there is an answer, within bounds. It leaves a server
 * that is down or failing for the next address, if there is one.
 */
export async function click(
  firstDoor: number,
  ask: (door: number) => Promise<Clicked>,
  { turnstile, runtime, random, stop }: Clicking,
): Promise<void> {
  let door = firstDoor;
  let comeBacks = 0;
  let reconnects = 0;
  for (;;) {
    const clicked = await turnstile.pass(async () => (stop.aborted ? null : ask(door)));
    if (clicked === null) return;
    const { reply, comeBack } = clicked;
    let waitMs: number;
    if (!reply.ok) {
      if (reconnects++ === RECONNECTS_MAX) return;
      waitMs = Math.min(50 * 2 ** reconnects, RECONNECT_MS_MAX) * (0.5 + random.fraction() / 2);
    } else {
      if (!comeBack || comeBacks++ === COME_BACKS_MAX) return;
      waitMs = retryAfterMs(reply);
    }
    if (!reply.ok || reply.status === 503) door++;
    await pause(runtime.timers, waitMs, stop);
    if (stop.aborted) return;
  }
}
