import { EventEmitter } from 'node:events';
import { TerminalError } from '../../base/errors.ts';
import { checkedFunction } from './checks.ts';
import type { LossReason } from './errors.ts';
import type { LockKind, Mode } from './port.ts';

export interface LockEvent {
  readonly kind: LockKind | 'latch' | 'quorum' | 'job';
  readonly name: string;
  readonly mode?: Mode;
  readonly label?: string;
}

/** The event of a call or of a hold. */
export function eventOf({ kind, name, mode, label }: Required<LockEvent>): LockEvent {
  return { kind, name, mode, ...(label === '' ? {} : { label }) };
}

/** Why a job (`leader`, `schedule`) did not run here. */
export type JobSkip =
  /** Another instance leads; this one stands in line. */
  | 'led elsewhere'
  /** Another instance has run this slot. */
  | 'done elsewhere'
  /** Another instance runs this slot, or still one before it. */
  | 'running elsewhere'
  /** This instance still runs a slot before it. */
  | 'still running here'
  /** The process was stopped, or the machine slept, when its time came. */
  | 'missed'
  /** The store could not be reached. */
  | 'unavailable';

/** `lost`: its lock, or `atMost` was reached. `stopped`: by stop() or close(). */
export type JobOutcome = 'done' | 'failed' | 'lost' | 'stopped';

/** What can be listened to with `locks.on(event, listener)`. */
export interface LockEvents {
  /** A call began. */
  asked: [LockEvent];
  /** It cannot be had at once. */
  waiting: [LockEvent];
  acquired: [LockEvent & { readonly token: bigint; readonly waitedMs: number; readonly waited: boolean }];
  /** A call ended without the lock. */
  failed: [LockEvent & { readonly reason: 'held' | 'timeout' | 'aborted' | 'unavailable'; readonly waitedMs: number }];
  released: [LockEvent & { readonly token: bigint; readonly heldMs: number }];
  lost: [LockEvent & { readonly token: bigint; readonly heldMs: number; readonly reason: LossReason }];
  /** Two locks were taken in one order here and in the other order there: one day both wait for each other. */
  crossed: [{ readonly first: string; readonly second: string; readonly here: string; readonly there: string }];
  /** A job that another instance runs, or has run, was skipped here. */
  skipped: [LockEvent & { readonly reason: JobSkip }];
  /** A job runs here. */
  began: [LockEvent & { readonly token: bigint }];
  ended: [
    LockEvent & {
      readonly token: bigint;
      readonly outcome: JobOutcome;
      readonly ranMs: number;
      readonly error?: unknown;
    },
  ];
}

const EVENTS = {
  asked: true,
  waiting: true,
  acquired: true,
  failed: true,
  released: true,
  lost: true,
  crossed: true,
  skipped: true,
  began: true,
  ended: true,
} satisfies Record<keyof LockEvents, true>;

/** An emitter that never throws for want of a listener, and whose listeners cannot break the lock they watch. */
export class Emitter {
  readonly #emitter = new EventEmitter<LockEvents>();
  readonly #onFault: (error: unknown) => void;

  constructor(onFault: (error: unknown) => void) {
    this.#onFault = onFault;
    this.#emitter.setMaxListeners(0);
  }

  /** Whether anybody ever listened to anything: every lock asks. */
  used = false;

  on<E extends keyof LockEvents>(event: E, listener: (...args: LockEvents[E]) => void): () => void {
    if (!Object.hasOwn(EVENTS, event)) {
      const known = Object.keys(EVENTS).join(', ');
      throw new TerminalError('invalid_argument', `the locks have no event "${String(event)}"; they have ${known}`);
    }
    checkedFunction(listener, 'on');
    this.used = true;
    // biome-ignore lint/suspicious/noExplicitAny: EventEmitter's own types do not follow a generic event name.
    const any = listener as any;
    this.#emitter.on(event, any);
    return () => void this.#emitter.off(event, any);
  }

  /** Whether anybody listens: without a listener the event is not even made. */
  hears(event: keyof LockEvents): boolean {
    return this.used && this.#emitter.listenerCount(event) > 0;
  }

  tell<E extends keyof LockEvents>(event: E, ...args: LockEvents[E]): void {
    try {
      // biome-ignore lint/suspicious/noExplicitAny: as above.
      this.#emitter.emit(event, ...(args as any));
    } catch (error) {
      this.#onFault(error);
    }
  }
}
