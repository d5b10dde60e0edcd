import type {
  AcquireReply,
  AcquireRequest,
  Given,
  HolderState,
  ReleaseReply,
  ReleaseRequest,
  RenewRequest,
} from '../client/port.ts';
import {
  clientOf,
  type Frame,
  type Hold,
  holderOf,
  type LockCell,
  remainingMs,
  renewHold,
  type Sight,
} from './frame.ts';
import { WaitQueue } from './queue.ts';

/** A mutex, fair or not: step by step what `_mutex.lua` and the `mutex-….lua` do. */
export class MutexCell implements LockCell {
  protected holder: Hold | null = null;
  protected readonly queue = new WaitQueue();

  get isEmpty(): boolean {
    return this.holder === null && this.queue.size === 0;
  }

  prune(nowMs: number): void {
    if (this.holder && this.holder.endMs <= nowMs) this.holder = null;
    this.queue.prune(nowMs);
  }

  #hold(frame: Frame, rid: string, leaseMs: number, info: string): number {
    const token = frame.mint();
    this.holder = { rid, token, permits: 1, sinceMs: frame.wallMs, endMs: frame.nowMs + leaseMs, info };
    return token;
  }

  /**
   * The lock is nobody's now: gives it to the first in the queue that still lives and tells only that one. `asker` is only
   * taken from the queue: it reads its grant from the reply. So does a request of the client that gave it back, `giver`:
   * then that reply is returned.
   */
  #handOver(frame: Frame, handOverMs: number, asker: string | null, giver: string | null = null): Given | null {
    this.holder = null;
    for (;;) {
      const head = this.queue.pop();
      if (!head || head.rid === asker) return null;
      const token = this.#hold(frame, head.rid, handOverMs, '');
      if (giver !== null && clientOf(head.rid) === clientOf(giver)) return { given: token, to: head.rid };
      if (frame.tellGranted(head.rid, token)) return null;
      this.holder = null;
    }
  }

  acquire(frame: Frame, request: AcquireRequest): AcquireReply {
    this.prune(frame.nowMs);
    const { rid, leaseMs, handOverMs, info } = request;
    if (this.holder?.rid === rid) {
      // This confirms a hand-over.
      renewHold(this.holder, frame.nowMs, leaseMs, this.holder.info === '' ? info : '');
      return { outcome: 'granted', token: this.holder.token };
    }
    if (frame.isGone(rid)) return { outcome: 'gone' };

    let { ticket } = request;
    if (!this.isEmpty) {
      if (request.queue) {
        if (ticket === 0) ticket = this.queue.ticketOf(rid) ?? frame.mint();
        this.queue.join(frame.nowMs, rid, ticket);
      }
      if (!this.holder) this.#handOver(frame, handOverMs, rid);
    }
    if (!this.holder) return { outcome: 'granted', token: this.#hold(frame, rid, leaseMs, info) };
    const retryMs = remainingMs(this.holder, frame.nowMs);
    return request.queue ? { outcome: 'queued', retryMs, ticket } : { outcome: 'held', retryMs, ticket: 0 };
  }

  release(frame: Frame, { rid, handOverMs, ambiguous }: ReleaseRequest): ReleaseReply {
    this.prune(frame.nowMs);
    let reply: ReleaseReply;
    // A copy of its acquire may have come after it was given to it.
    if (this.holder?.rid === rid && ambiguous) this.queue.leave(rid);
    if (this.holder?.rid === rid) {
      reply = this.#handOver(frame, handOverMs, null, rid) ?? (this.holder ? 'handed' : 'released');
    } else {
      reply = this.queue.leave(rid) ? 'dequeued' : 'absent';
      // Its own lease or another's has run out: whichever command comes next moves the queue on.
      if (!this.holder) {
        this.#handOver(frame, handOverMs, null);
        if (this.holder) reply = 'moved';
      }
    }
    if (ambiguous) frame.rememberGone(rid);
    return reply;
  }

  renew(frame: Frame, { rid, leaseMs, info, exactly }: RenewRequest): boolean {
    this.prune(frame.nowMs);
    if (this.holder?.rid !== rid) return false;
    renewHold(this.holder, frame.nowMs, leaseMs, info, exactly);
    return true;
  }

  force(frame: Frame, handOverMs: number, _limit: number): readonly HolderState[] {
    this.prune(frame.nowMs);
    const { holder } = this;
    this.#handOver(frame, handOverMs, null);
    if (!holder) return [];
    frame.tell('lost', holder.rid);
    return [holderOf(holder, 'write', frame.nowMs)];
  }

  /** The caller makes sure that the next number minted is larger. */
  raise(nowMs: number, rid: string, token: number): boolean {
    this.prune(nowMs);
    if (this.holder?.rid !== rid) return false;
    this.holder.token = Math.max(this.holder.token, token);
    return true;
  }

  inspect(nowMs: number): Sight {
    this.prune(nowMs);
    return {
      holders: this.holder ? [holderOf(this.holder, 'write', nowMs)] : [],
      waiters: this.queue.take(100).map(({ rid, ticket, permits }) => ({ rid, mode: 'write', permits, ticket })),
      waiting: this.queue.size,
      limit: null,
    };
  }
}

/** A mutex that ends with a result, which is kept for those who come later. */
export class OnceCell extends MutexCell {
  #result: { readonly rid: string; readonly text: string; readonly endMs: number } | null = null;

  override get isEmpty(): boolean {
    return this.#result === null && super.isEmpty;
  }

  override prune(nowMs: number): void {
    super.prune(nowMs);
    if (this.#result && this.#result.endMs <= nowMs) this.#result = null;
  }

  override acquire(frame: Frame, request: AcquireRequest): AcquireReply {
    this.prune(frame.nowMs);
    if (this.#result) return { outcome: 'done', result: this.#result.text };
    return super.acquire(frame, request);
  }

  finish(frame: Frame, rid: string, text: string, keepMs: number): boolean {
    this.prune(frame.nowMs);
    // Sent again because its reply was lost.
    if (this.holder?.rid !== rid) return this.#result?.rid === rid;
    this.#result = { rid, text, endMs: frame.nowMs + keepMs };
    this.holder = null;
    for (const waiter of this.queue) frame.tell('look', waiter.rid);
    this.queue.clear();
    return true;
  }

  forget(nowMs: number): boolean {
    this.prune(nowMs);
    const was = this.#result !== null;
    this.#result = null;
    return was;
  }
}
