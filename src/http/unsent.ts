import type { ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { Logger } from '../base/logger.ts';
import type { Runtime } from '../base/runtime.ts';

export interface UnsentOn extends Pick<Runtime, 'clock' | 'timers'> {
  readonly log: Pick<Logger, 'warn'>;
}

export interface UnsentBounds {
  /** Memory of the unread answers of all sockets together. */
  bytesMax: number;
  /** How long a client may take to read an answer, */
  withinMs: number;
  /** plus its length at this rate, which even a poor mobile connection exceeds. */
  bytesPerSecondMin: number;
}

export const UNSENT_BOUNDS: UnsentBounds = {
  bytesMax: 64 * 1024 * 1024,
  withinMs: 30_000,
  bytesPerSecondMin: 8 * 1024,
};

/** Beyond the bound, sockets are closed down to this share of it: otherwise every further byte would sort all of them again. */
const SHARE_LEFT = 7 / 8;
const CHECK_EVERY_MS = 1_000;

/** What a client has not read yet. */
interface Owed {
  /** In memory. */
  bytes: number;
  /** On the wire. */
  length: number;
  answers: number;
  dueMs: number;
  readonly gone: () => void;
}

/**
 * Bounds the answers that clients have not read yet, over all sockets: with a bound per socket alone, ten thousand sockets
 * could fill the memory. Beyond the bound, the sockets with the most unread bytes are closed. An answer also has a deadline:
 * otherwise a client that reads one byte now and then would keep it in memory for ever.
 */
export class Unsent {
  readonly #on: UnsentOn;
  readonly #bounds: UnsentBounds;
  readonly #owed = new Map<Socket, Owed>();
  readonly #stop: () => void;
  #bytes = 0;
  #judging = false;

  constructor(on: UnsentOn, bounds: UnsentBounds) {
    this.#on = on;
    this.#bounds = bounds;
    this.#stop = on.timers.every(CHECK_EVERY_MS, () => this.#cutLate());
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** Counts an answer until the operating system has taken it. `bytes`: in memory; `length`: on the wire. */
  add(socket: Socket, response: ServerResponse, bytes: number, length: number): void {
    if (socket.destroyed) return;
    const nowMs = this.#on.clock.monotonic();
    const owed = this.#owed.get(socket) ?? this.#begin(socket, nowMs);
    owed.bytes += bytes;
    owed.length += length;
    owed.answers++;
    // Reading fast earlier earns no credit: otherwise it would buy hours of reading one byte now and then.
    owed.dueMs = Math.min(owed.dueMs + this.#msFor(length), nowMs + this.#bounds.withinMs + this.#msFor(owed.length));
    this.#bytes += bytes;
    response.once('close', () => this.#taken(socket, owed, bytes, length));
    if (this.#bytes <= this.#bounds.bytesMax || this.#judging) return;
    // Judge in the next turn: all answers of one commit are created before the first is sent, and clients that do read have
    // taken theirs by then.
    this.#judging = true;
    this.#on.timers.nextTurn(() => {
      this.#judging = false;
      if (this.#bytes > this.#bounds.bytesMax) this.#cutLargest();
    });
  }

  close(): void {
    this.#stop();
  }

  #begin(socket: Socket, nowMs: number): Owed {
    const owed: Owed = {
      bytes: 0,
      length: 0,
      answers: 0,
      dueMs: nowMs + this.#bounds.withinMs,
      // Pipelined answers behind the first one get no `close` event of their own.
      gone: () => this.#forget(socket, owed),
    };
    this.#owed.set(socket, owed);
    socket.once('close', owed.gone);
    return owed;
  }

  #taken(socket: Socket, owed: Owed, bytes: number, length: number): void {
    if (this.#owed.get(socket) !== owed) return;
    owed.bytes -= bytes;
    owed.length -= length;
    owed.answers--;
    this.#bytes -= bytes;
    if (owed.answers === 0) this.#forget(socket, owed);
  }

  #forget(socket: Socket, owed: Owed): void {
    if (this.#owed.get(socket) !== owed) return;
    this.#owed.delete(socket);
    this.#bytes -= owed.bytes;
    socket.off('close', owed.gone);
  }

  #cutLargest(): void {
    const leftMax = this.#bounds.bytesMax * SHARE_LEFT;
    let cut = 0;
    for (const [socket, owed] of [...this.#owed].sort(([, a], [, b]) => b.bytes - a.bytes)) {
      if (this.#bytes <= leftMax) break;
      this.#forget(socket, owed);
      socket.destroy();
      cut++;
    }
    this.#on.log.warn(
      { cut },
      'clients do not read their answers; the connections with the most unread bytes were closed',
    );
  }

  #cutLate(): void {
    const nowMs = this.#on.clock.monotonic();
    for (const [socket, owed] of this.#owed) {
      if (nowMs < owed.dueMs) continue;
      if (socket.writableLength === 0) {
        // The answers wait behind one that is still being produced: not the client's fault.
        owed.dueMs = nowMs + this.#bounds.withinMs + this.#msFor(owed.length);
        continue;
      }
      this.#forget(socket, owed);
      socket.destroy();
    }
  }

  #msFor(length: number): number {
    return (length / this.#bounds.bytesPerSecondMin) * 1000;
  }
}
