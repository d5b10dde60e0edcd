import type { Runtime } from '../runtime.ts';
import type { SentScript } from './sent-script.ts';

/** A connection that has not answered anything for so many time limits is taken for dead. */
const SILENT_LIMITS = 3;

export interface UnderWayEvents {
  /** The error of a script that was not answered in time. */
  late(): Error;
  /** Nothing was answered for so long that the connection is dead. */
  dead(): void;
}

/** Scripts that have not been answered, oldest first. All have the same time limit, so that one timer is enough. */
export class UnderWay {
  readonly #runtime: Runtime;
  readonly #limitMs: number;
  readonly #events: UnderWayEvents;
  #sent: SentScript[] = [];
  #first = 0;
  #stop: (() => void) | null = null;
  #silent = 0;

  constructor(runtime: Runtime, limitMs: number, events: UnderWayEvents) {
    this.#runtime = runtime;
    this.#limitMs = limitMs;
    this.#events = events;
  }

  #skip(): void {
    while (this.#first < this.#sent.length && !this.#sent[this.#first]!.open) {
      this.#first++;
      this.#silent = 0;
    }
    if (this.#first === this.#sent.length) {
      this.#sent.length = 0;
      this.#first = 0;
    }
  }

  get isEmpty(): boolean {
    this.#skip();
    return this.#sent.length === 0;
  }

  add(sent: SentScript): void {
    if (this.#first > 1000) {
      this.#sent = this.#sent.slice(this.#first);
      this.#first = 0;
    }
    this.#sent.push(sent);
    this.#stop ??= this.#runtime.timers.after(this.#limitMs, this.#expire);
  }

  readonly #expire = (): void => {
    this.#stop = null;
    this.#skip();
    const nowMs = this.#runtime.clock.monotonic();
    let expired = false;
    while (this.#first < this.#sent.length) {
      const sent = this.#sent[this.#first]!;
      if (sent.open) {
        const leftMs = sent.sentMs + this.#limitMs - nowMs;
        if (leftMs > 0.5) {
          this.#stop = this.#runtime.timers.after(leftMs, this.#expire);
          break;
        }
        expired = true;
        sent.reject(this.#events.late());
      }
      this.#first++;
    }
    // A slow server answers later. A connection whose other end vanished without a word never will.
    if (expired && ++this.#silent >= SILENT_LIMITS) {
      this.#silent = 0;
      this.#events.dead();
    }
  };

  close(): void {
    this.#stop?.();
  }
}
