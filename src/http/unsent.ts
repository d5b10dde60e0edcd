import type { ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { Logger } from '../base/logger.ts';
import type { Runtime } from '../base/runtime.ts';

export interface UnsentOn extends Pick<Runtime, 'clock' | 'timers'> {
  readonly log: Pick<Logger, 'warn'>;
}

export interface UnsentBounds {
  /** Of all sockets together. */
  bytesMax: number;
  /** So long every answer may take, */
  withinMs: number;
  /** and longer by its length at this rate: a telephone far out in the country is faster. */
  bytesPerSecondMin: number;
}

export const UNSENT_BOUNDS: UnsentBounds = {
  bytesMax: 64 * 1024 * 1024,
  withinMs: 30_000,
  bytesPerSecondMin: 8 * 1024,
};

/** Too many bytes are cut down to this share of the bound: with every byte beyond it all sockets would be sorted anew. */
const SHARE_LEFT = 7 / 8;
const CHECK_EVERY_MS = 1_000;

interface Owed {
  /** What it takes in memory. */
  bytes: number;
  /** What has to go over the wire. */
  length: number;
  answers: number;
  dueMs: number;
  readonly gone: () => void;
}

/**
 * Answers that were made and that no client has taken yet, of all sockets together: the bounds of one socket would allow ten
 * thousand of them to fill the memory. Beyond the bound those who owe the most are cut off. And an answer must be taken in
 * full within a time: a client that takes a byte now and then would else keep it for ever.
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

  /** Counts an answer until it has been handed to the system. `bytes`: in memory; `length`: on the wire. */
  add(socket: Socket, response: ServerResponse, bytes: number, length: number): void {
    if (socket.destroyed) return;
    const nowMs = this.#on.clock.monotonic();
    const owed = this.#owed.get(socket) ?? this.#begin(socket, nowMs);
    owed.bytes += bytes;
    owed.length += length;
    owed.answers++;
    // What was taken fast earlier is no credit: else it would pay for hours of one byte now and then.
    owed.dueMs = Math.min(owed.dueMs + this.#msFor(length), nowMs + this.#bounds.withinMs + this.#msFor(owed.length));
    this.#bytes += bytes;
    response.once('close', () => this.#taken(socket, owed, bytes, length));
    if (this.#bytes <= this.#bounds.bytesMax || this.#judging) return;
    // Whoever reads has taken theirs by then: the answers of one commit are all made before the first is sent.
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
      // Answers behind the first one are not told that their socket has closed.
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
    this.#on.log.warn({ cut }, 'clients do not read their answers; those with the most unread are closed');
  }

  #cutLate(): void {
    const nowMs = this.#on.clock.monotonic();
    for (const [socket, owed] of this.#owed) {
      if (nowMs < owed.dueMs) continue;
      if (socket.writableLength === 0) {
        // They wait behind an answer that is still being made, which is not the client's fault.
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
