import { messageOf } from '../../base/errors.ts';
import type { Runtime } from '../../base/runtime.ts';

/** Most lost connections are back at once. */
const FIRST_PROBE_MS = 20;
const PROBE_EVERY_MS = 250;

interface Open {
  readonly reason: string;
  readonly waiting: Set<() => void>;
  stop: () => void;
}

/**
 * Circuit breakers: they keep orders from piling up in front of a Redis that does not answer.
 *
 *   closed → open   a command failed, or the connection broke. Orders fail at once from now on.
 *   open → closed   a probe succeeded. It is a write without effect: a replica refuses it, and does not pass for a master.
 *
 * One server has one breaker. In a cluster each sale has its own, since other sales may be on healthy masters.
 */
export class Breakers {
  readonly #runtime: Runtime;
  readonly #perSale: boolean;
  readonly #probe: (saleId: string | null) => Promise<unknown>;
  readonly #onOpen: () => void;
  readonly #open = new Map<string | null, Open>();
  #closed = false;

  constructor(
    runtime: Runtime,
    perSale: boolean,
    probe: (saleId: string | null) => Promise<unknown>,
    onOpen: () => void,
  ) {
    this.#runtime = runtime;
    this.#perSale = perSale;
    this.#probe = probe;
    this.#onOpen = onOpen;
  }

  /** Why no order can be taken now; null while those of some sale can. */
  get reason(): string | null {
    return this.#open.get(null)?.reason ?? null;
  }

  reasonOf(saleId: string): string | null {
    if (this.#open.size === 0) return null;
    return this.#openFor(saleId)?.reason ?? null;
  }

  #openFor(saleId: string): Open | undefined {
    return this.#open.get(null) ?? (this.#perSale ? this.#open.get(saleId) : undefined);
  }

  /** `saleId` null: for all sales. */
  trip(saleId: string | null, reason: string, cause?: string): void {
    const name = this.#perSale ? saleId : null;
    if (this.#closed || this.#open.has(name)) return;
    this.#runtime.log.warn({ reason, cause, saleId: name }, 'the gate does not answer');
    const open: Open = { reason, waiting: new Set(), stop: () => undefined };
    this.#open.set(name, open);
    this.#probeIn(FIRST_PROBE_MS, name, open);
    this.#onOpen();
  }

  #probeIn(ms: number, name: string | null, open: Open): void {
    open.stop = this.#runtime.timers.after(ms, () => {
      this.#probe(name).then(
        () => this.#close(name, open),
        (error: unknown) => {
          if (this.#closed) return;
          this.#runtime.log.debug({ reason: messageOf(error) }, 'the gate still does not answer');
          this.#probeIn(PROBE_EVERY_MS, name, open);
        },
      );
    });
  }

  #close(name: string | null, open: Open): void {
    if (this.#closed) return;
    this.#open.delete(name);
    this.#runtime.log.info({ saleId: name }, 'the gate answers again');
    for (const go of open.waiting) go();
  }

  /** Resolves when the breaker of a sale is closed: true; or false after `withinMs`. */
  whenClosed(saleId: string, withinMs: number): Promise<boolean> {
    const open = this.#openFor(saleId);
    if (open === undefined) return Promise.resolve(!this.#closed);
    if (withinMs <= 0) return Promise.resolve(false);
    return new Promise((resolve) => {
      const done = (isClosed: boolean): void => {
        stop();
        open.waiting.delete(go);
        resolve(isClosed && !this.#closed);
      };
      const go = (): void => done(true);
      const stop = this.#runtime.timers.after(withinMs, () => done(false));
      open.waiting.add(go);
    });
  }

  close(): void {
    this.#closed = true;
    for (const { stop, waiting } of this.#open.values()) {
      stop();
      for (const go of waiting) go();
    }
    this.#open.clear();
  }
}
