import type { LockClient } from './client.ts';
import type { Hold } from './hold.ts';
import type { Address } from './port.ts';
import type { Waiter } from './waiter.ts';
import type { Line } from './waiting.ts';

/** How often in a row a mutex may stay in this process, or for how long if each holder takes only a moment. */
const IN_A_ROW_MIN = 16;
const IN_A_ROW_MS = 10;
/** Whoever has waited in this process for so long asks the store after all. */
const PARKED_MS = 100;

/**
 * Passing: a mutex that is released in a process where others wait for it goes to the next of them before it goes to another
 * process, some times in a row. That costs one message where the other way costs three. Redis decides all the same, and
 * mints a token for each. A fair lock is never passed.
 *
 * Parking: while a mutex goes round like this, whoever asks for it here waits in this process only. Its turn in the row
 * comes before the store could say more than "wait".
 */
export class Passing {
  readonly #client: LockClient;

  constructor(client: LockClient) {
    this.#client = client;
  }

  /** Names the next of this process in the release of `hold`, unless the row is over. */
  name(hold: Hold, nowMs: number): void {
    if (hold.kind !== 'mutex') return;
    const line = this.#client.waiting.lineOf(hold);
    if (!line) return;
    if (hold.inARow >= IN_A_ROW_MIN && nowMs > hold.rowSinceMs + IN_A_ROW_MS) return;
    for (const waiter of line.waiters) {
      if (waiter.asking) continue;
      hold.next = waiter.rid;
      hold.nextQueued = waiter.queued;
      waiter.named = true;
      line.moved = true;
      line.row ??= this.#lookAfterRow(line);
      return;
    }
  }

  /** False: the mutex does not go round here, or the call must ask all the same. */
  park(waiter: Waiter): boolean {
    if (waiter.kind !== 'mutex') return false;
    const { waiting } = this.#client;
    const line = waiting.lineOf(waiter);
    if (!line || line.row === null || waiter.terms.waitMs === 0 || waiter.terms.replicas > 0) return false;
    waiter.parked = true;
    waiting.stand(waiter, line);
    waiting.tell(waiter);
    return true;
  }

  /** Nobody is parked for long: `inspect` is to show who waits, and it is the store that heals what is lost. */
  #lookAfterRow(line: Line): () => void {
    const { runtime, asking, waiting } = this.#client;
    return runtime.timers.after(PARKED_MS, () => {
      const sinceMs = this.#client.nowMs() - PARKED_MS;
      let parked = false;
      for (const waiter of line.waiters) {
        if (!waiter.parked) continue;
        if (waiter.beganMs <= sinceMs) asking.ask(waiter);
        else parked = true;
      }
      if (parked || line.moved) {
        line.moved = false;
        line.row = this.#lookAfterRow(line);
      } else {
        line.row = null;
        waiting.drop(line);
      }
    });
  }

  /**
   * The mutex leaves this process: one of those who are parked asks for all of them. `free`: the store says that nobody
   * waits, so that a waiter that believes to be in its queue is not.
   */
  represent(address: Address, free = false): void {
    const line = this.#client.waiting.lineOf(address);
    if (!line || (line.row === null && !free)) return;
    let first: Waiter | null = null;
    for (const waiter of line.waiters) {
      if (waiter.asking || (waiter.queued && !free)) return;
      first ??= waiter;
    }
    if (first) this.#client.asking.ask(first);
    else this.endRow(address);
  }

  /** Those who are parked ask the store. */
  endRow(address: Address): void {
    const { waiting, asking } = this.#client;
    const line = waiting.lineOf(address);
    if (!line || line.row === null) return;
    line.row();
    line.row = null;
    for (const waiter of line.waiters) if (waiter.parked) asking.ask(waiter);
    waiting.drop(line);
  }
}
