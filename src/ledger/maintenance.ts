import type { Runtime } from '../base/runtime.ts';
import { turn } from '../base/sweep.ts';
import type { Upkeep } from './port.ts';

export interface MaintenanceOptions {
  /** The ledger is out: nothing can be written. */
  isOut(): boolean;
  failed(error: unknown): void;
}

/** Up to here the tail of the ledger is folded only while nothing else happens; above, between commits. */
const BACKLOG_IDLE_MAX = 200_000;
const IDLE_AFTER_MS = 50;
const IDLE_PAUSE_MS = 20;
const IDLE_SLICE_MS = 2;
/** Between commits: as many slices as it takes to fold what the commit has added, but no more than these. */
const BUSY_SLICE_MS = 1;
const BUSY_SLICES_MAX = 20;
/** On closing, so that the next start has less to read back. */
const CLOSING_MS_MAX = 2_000;
const CLOSING_SLICE_MS = 50;

/** Folds the tail of the ledger (docs/internals/sqlite-ledger.md) while nobody orders; in a long rush, between commits. */
export class Maintenance {
  readonly #ledger: Pick<Upkeep, 'maintain' | 'backlog'>;
  readonly #runtime: Runtime;
  readonly #options: MaintenanceOptions;
  #cancel: (() => void) | null = null;
  #lastCommitMs = 0;
  #closed = false;

  constructor(ledger: Pick<Upkeep, 'maintain' | 'backlog'>, runtime: Runtime, options: MaintenanceOptions) {
    this.#ledger = ledger;
    this.#runtime = runtime;
    this.#options = options;
    this.#whenIdle();
  }

  /** So many orders were added. Resolves when the next may come: a crowd that never pauses must not let the tail grow for ever. */
  async committed(orders: number): Promise<void> {
    this.#lastCommitMs = this.#runtime.clock.monotonic();
    const goal = Math.max(this.#ledger.backlog - orders, BACKLOG_IDLE_MAX);
    for (let slices = 0; this.#ledger.backlog > goal && slices < BUSY_SLICES_MAX; slices++) {
      if (!(await this.#maintain(BUSY_SLICE_MS))) break;
    }
    this.#whenIdle();
  }

  /** For a bounded time: what is folded now need not be read back at the next start. */
  async beforeClosing(): Promise<void> {
    const untilMs = this.#runtime.clock.monotonic() + CLOSING_MS_MAX;
    // Other work of the process goes on in between.
    while (this.#runtime.clock.monotonic() < untilMs && (await this.#maintain(CLOSING_SLICE_MS))) {
      await turn(this.#runtime.timers);
    }
  }

  close(): void {
    this.#closed = true;
    this.#cancel?.();
  }

  #whenIdle(afterMs = IDLE_AFTER_MS): void {
    if (this.#cancel !== null || this.#closed) return;
    this.#cancel = this.#runtime.timers.after(afterMs, async () => {
      this.#cancel = null;
      const idle = this.#runtime.clock.monotonic() - this.#lastCommitMs >= IDLE_AFTER_MS;
      if (!idle) this.#whenIdle();
      else if (await this.#maintain(IDLE_SLICE_MS)) this.#whenIdle(IDLE_PAUSE_MS);
    });
  }

  async #maintain(sliceMs: number): Promise<boolean> {
    if (this.#options.isOut() || this.#closed) return false;
    try {
      return await this.#ledger.maintain(sliceMs);
    } catch (error) {
      // What waits is in the orders table: nothing is lost, and the next slice tries again.
      this.#runtime.log.warn({ err: error }, 'maintenance of the ledger failed');
      this.#options.failed(error);
      return false;
    }
  }
}
