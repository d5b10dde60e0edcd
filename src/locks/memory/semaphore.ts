import type {
  AcquireReply,
  AcquireRequest,
  HolderState,
  ReleaseReply,
  ReleaseRequest,
  RenewRequest,
} from '../client/port.ts';
import { type Frame, holderOf, type LockCell, RETRY_MS, renewHold, type Sight } from './frame.ts';
import { Holds } from './holds.ts';
import { WaitQueue } from './queue.ts';

/** A number of permits. First come, first served: whoever wants many is not overtaken for ever by those who want few. */
export class SemaphoreCell implements LockCell {
  readonly #holders = new Holds();
  readonly #queue = new WaitQueue();
  /** Set for everybody by `resize`; null: whoever asks says how many there are. */
  #size: number | null = null;

  get isEmpty(): boolean {
    return this.#holders.size === 0 && this.#queue.size === 0 && this.#size === null;
  }

  prune(nowMs: number): void {
    this.#holders.prune(nowMs);
    this.#queue.prune(nowMs);
  }

  #hold(frame: Frame, rid: string, permits: number, leaseMs: number, info: string): number {
    const token = frame.mint();
    this.#holders.add({ rid, token, permits, sinceMs: frame.wallMs, endMs: frame.nowMs + leaseMs, info });
    return token;
  }

  /** Lets in the first of the queue while they fit. True: somebody was told, and has yet to confirm. */
  #settle(frame: Frame, limit: number, handOverMs: number, asker: AcquireRequest | null): boolean {
    let told = false;
    for (;;) {
      const head = this.#queue.first;
      if (!head) return told;
      const { rid, permits } = head;
      if (rid === asker?.rid || frame.hears(rid)) {
        if (this.#holders.permits + permits > limit) return told;
        if (rid === asker?.rid) this.#hold(frame, rid, permits, asker.leaseMs, asker.info);
        else told = frame.tellGranted(rid, this.#hold(frame, rid, permits, handOverMs, ''));
      }
      this.#queue.leave(rid);
    }
  }

  acquire(frame: Frame, request: AcquireRequest): AcquireReply {
    this.prune(frame.nowMs);
    const { rid, permits, leaseMs, info } = request;
    const held = this.#holders.get(rid);
    if (held) {
      renewHold(held, frame.nowMs, leaseMs, '');
      this.#holders.moved(held);
      return { outcome: 'granted', token: held.token };
    }
    if (frame.isGone(rid)) return { outcome: 'gone' };

    const limit = this.#size ?? request.limit;
    let { ticket } = request;
    if (this.#queue.size > 0 || this.#holders.permits + permits > limit) {
      if (request.queue) {
        if (ticket === 0) ticket = this.#queue.ticketOf(rid) ?? frame.mint();
        this.#queue.join(frame.nowMs, rid, ticket, permits);
      }
      this.#settle(frame, limit, request.handOverMs, request);
      const granted = this.#holders.get(rid);
      if (granted) return { outcome: 'granted', token: granted.token };
    }
    if (this.#queue.size === 0 && this.#holders.permits + permits <= limit) {
      return { outcome: 'granted', token: this.#hold(frame, rid, permits, leaseMs, info) };
    }
    const shortestMs = this.#holders.shortestMs(frame.nowMs);
    const retryMs = shortestMs === Infinity || (!request.queue && permits > limit) ? RETRY_MS : shortestMs;
    return request.queue ? { outcome: 'queued', retryMs, ticket } : { outcome: 'held', retryMs, ticket: 0 };
  }

  release(frame: Frame, request: ReleaseRequest): ReleaseReply {
    this.prune(frame.nowMs);
    const { rid, handOverMs } = request;
    const held = this.#holders.remove(rid) !== undefined;
    const queued = !held && this.#queue.leave(rid);
    const handed = this.#settle(frame, this.#size ?? request.limit, handOverMs, null);
    if (request.ambiguous) frame.rememberGone(rid);
    if (held) return handed ? 'handed' : 'released';
    if (handed) return 'moved';
    return queued ? 'dequeued' : 'absent';
  }

  renew(frame: Frame, { rid, leaseMs, info, exactly }: RenewRequest): boolean {
    this.prune(frame.nowMs);
    const held = this.#holders.get(rid);
    if (!held) return false;
    renewHold(held, frame.nowMs, leaseMs, info, exactly);
    this.#holders.moved(held);
    return true;
  }

  force(frame: Frame, handOverMs: number, limit: number): readonly HolderState[] {
    const { holders } = this.inspect(frame.nowMs);
    this.#holders.clear();
    this.#settle(frame, this.#size ?? limit, handOverMs, null);
    for (const { rid } of holders) frame.tell('lost', rid);
    return holders;
  }

  resize(frame: Frame, size: number | null, defaultLimit: number, handOverMs: number): void {
    this.prune(frame.nowMs);
    this.#size = size;
    this.#settle(frame, size ?? defaultLimit, handOverMs, null);
  }

  inspect(nowMs: number): Sight {
    this.prune(nowMs);
    return {
      holders: [...this.#holders].map((hold) => holderOf(hold, 'write', nowMs)),
      waiters: this.#queue.take(100).map(({ rid, ticket, permits }) => ({ rid, mode: 'write', permits, ticket })),
      waiting: this.#queue.size,
      limit: this.#size,
    };
  }
}
