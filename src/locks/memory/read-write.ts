import type {
  AcquireReply,
  AcquireRequest,
  ChangeReply,
  ChangeRequest,
  HolderState,
  Mode,
  ReleaseReply,
  ReleaseRequest,
  RenewRequest,
  WaiterState,
} from '../client/port.ts';
import {
  type Frame,
  type Hold,
  holderOf,
  type LockCell,
  RETRY_MS,
  remainingMs,
  renewHold,
  type Sight,
} from './frame.ts';
import { Holds } from './holds.ts';
import { type Place, WaitQueue } from './queue.ts';

/** A reader that waits for the other readers to leave. It reads on meanwhile. */
interface Upgrade {
  readonly readRid: string;
  readonly writeRid: string;
}

/** What made room: decides whose turn it is where both kinds wait. */
type After = Mode | 'unknown';

/**
 * Many readers or one writer, phase-fair: a writer lets in all readers that wait, and the last of the readers a writer, so
 * that neither kind can keep the other out. Readers that come while a writer waits, wait as well.
 */
export class ReadWriteCell implements LockCell {
  readonly #readers = new Holds();
  readonly #readQueue = new WaitQueue();
  readonly #writeQueue = new WaitQueue();
  #writer: Hold | null = null;
  #upgrade: Upgrade | null = null;

  get isEmpty(): boolean {
    return this.#isFree && this.#readQueue.size === 0 && this.#writeQueue.size === 0;
  }

  get #isFree(): boolean {
    return this.#writer === null && this.#readers.size === 0;
  }

  prune(nowMs: number): void {
    if (this.#writer && this.#writer.endMs <= nowMs) this.#writer = null;
    this.#readers.prune(nowMs);
    // It was to become the writer instead of this reader, not beside it.
    if (this.#upgrade && !this.#readers.get(this.#upgrade.readRid)) this.#upgrade = null;
    this.#readQueue.prune(nowMs);
    this.#writeQueue.prune(nowMs);
  }

  #heldBy(rid: string): Hold | undefined {
    return this.#writer?.rid === rid ? this.#writer : this.#readers.get(rid);
  }

  #renew(hold: Hold, nowMs: number, leaseMs: number, info: string, exactly = false): void {
    renewHold(hold, nowMs, leaseMs, info, exactly);
    if (hold !== this.#writer) this.#readers.moved(hold);
  }

  #enter(frame: Frame, rid: string, mode: Mode, leaseMs: number, info: string): number {
    const token = frame.mint();
    const hold: Hold = { rid, token, permits: 1, sinceMs: frame.wallMs, endMs: frame.nowMs + leaseMs, info };
    if (mode === 'read') this.#readers.add(hold);
    else this.#writer = hold;
    return token;
  }

  // Who is next

  /** The first of a queue whose process lives; those before it are dropped. */
  #liveHead(frame: Frame, queue: WaitQueue, asker: AcquireRequest | null): Place | undefined {
    for (;;) {
      const head = queue.first;
      if (!head || head.rid === asker?.rid || frame.hears(head.rid)) return head;
      queue.leave(head.rid);
    }
  }

  /** Lets in whoever may enter now; `asker` reads it from the reply. True: somebody else was told, and has yet to confirm. */
  #settle(frame: Frame, after: After, handOverMs: number, asker: AcquireRequest | null = null): boolean {
    if (this.#writer) return false;
    if (this.#upgrade) {
      const { readRid, writeRid } = this.#upgrade;
      if (writeRid === asker?.rid || frame.hears(writeRid)) {
        if (this.#readers.size > 1) return false;
        this.#upgrade = null;
        // If it misses the news, it goes on believing in its read lease: the write hold lasts at least as long.
        const leftMs = (this.#readers.get(readRid)?.endMs ?? 0) - frame.nowMs;
        this.#readers.remove(readRid);
        return this.#letIn(frame, writeRid, 'write', Math.max(handOverMs, leftMs), asker);
      }
      // Only the wish goes: its read hold ends by its own lease.
      this.#upgrade = null;
    }
    const writer = this.#liveHead(frame, this.#writeQueue, asker);
    if (this.#readers.size > 0) return writer === undefined && this.#letReadersIn(frame, handOverMs, asker);
    const reader = this.#liveHead(frame, this.#readQueue, asker);
    if (!writer && !reader) return false;
    const readersFirst =
      writer === undefined ||
      (reader !== undefined && (after === 'write' || (after === 'unknown' && reader.ticket < writer.ticket)));
    if (readersFirst) return this.#letReadersIn(frame, handOverMs, asker);
    this.#writeQueue.leave(writer.rid);
    return this.#letIn(frame, writer.rid, 'write', handOverMs, asker);
  }

  /** True: told. False: read from the reply, or nobody listens and it is as if it had never waited. */
  #letIn(frame: Frame, rid: string, mode: Mode, handOverMs: number, asker: AcquireRequest | null): boolean {
    if (rid === asker?.rid) {
      this.#enter(frame, rid, mode, asker.leaseMs, asker.info);
      return false;
    }
    return frame.hears(rid) && frame.tellGranted(rid, this.#enter(frame, rid, mode, handOverMs, ''));
  }

  #letReadersIn(frame: Frame, handOverMs: number, asker: AcquireRequest | null): boolean {
    let told = false;
    for (const { rid } of this.#readQueue) if (this.#letIn(frame, rid, 'read', handOverMs, asker)) told = true;
    this.#readQueue.clear();
    return told;
  }

  // Commands

  acquire(frame: Frame, request: AcquireRequest): AcquireReply {
    this.prune(frame.nowMs);
    const { rid, mode, leaseMs, handOverMs, info } = request;
    const held = this.#heldBy(rid);
    if (held) {
      this.#renew(held, frame.nowMs, leaseMs, '');
      return { outcome: 'granted', token: held.token };
    }
    if (frame.isGone(rid)) return { outcome: 'gone' };
    if (this.isEmpty) return { outcome: 'granted', token: this.#enter(frame, rid, mode, leaseMs, info) };

    let { ticket } = request;
    // One that waits for its upgrade has its place already, before all others.
    if (request.queue && this.#upgrade?.writeRid !== rid) {
      const queue = mode === 'read' ? this.#readQueue : this.#writeQueue;
      if (ticket === 0) ticket = queue.ticketOf(rid) ?? frame.mint();
      queue.join(frame.nowMs, rid, ticket);
    }
    this.#settle(frame, 'unknown', handOverMs, request);
    const granted = this.#heldBy(rid);
    if (granted) return { outcome: 'granted', token: granted.token };
    if (this.#mayEnter(frame, mode)) return { outcome: 'granted', token: this.#enter(frame, rid, mode, leaseMs, info) };
    const retryMs = this.#retryMs(frame.nowMs);
    return request.queue ? { outcome: 'queued', retryMs, ticket } : { outcome: 'held', retryMs, ticket: 0 };
  }

  /** May one enter that has not queued, now that all have been let in who may? */
  #mayEnter(frame: Frame, mode: Mode): boolean {
    if (mode === 'write') return this.#isFree;
    return !this.#writer && !this.#upgrade && !this.#liveHead(frame, this.#writeQueue, null);
  }

  #retryMs(nowMs: number): number {
    const retryMs = this.#writer ? remainingMs(this.#writer, nowMs) : this.#readers.shortestMs(nowMs);
    return retryMs === Infinity ? RETRY_MS : retryMs;
  }

  release(frame: Frame, { rid, handOverMs, ambiguous, backTo }: ReleaseRequest): ReleaseReply {
    this.prune(frame.nowMs);
    let reply: ReleaseReply;
    if (this.#writer?.rid === rid && backTo !== '') {
      const { token, permits, endMs } = this.#writer;
      this.#writer = null;
      this.#readers.add({ rid: backTo, token, permits, sinceMs: frame.wallMs, endMs, info: '' });
      reply = this.#letReadersIn(frame, handOverMs, null) ? 'moved' : 'dequeued';
    } else if (this.#writer?.rid === rid) {
      this.#writer = null;
      reply = this.#settle(frame, 'write', handOverMs) ? 'handed' : 'released';
    } else if (this.#readers.remove(rid)) {
      if (this.#upgrade?.readRid === rid) this.#upgrade = null;
      reply = this.#settle(frame, 'read', handOverMs) ? 'handed' : 'released';
    } else {
      reply = this.#leaveQueues(rid) ? 'dequeued' : 'absent';
      // A writer that no longer waits blocks no reader; and a lease may have run out.
      if (this.#settle(frame, 'unknown', handOverMs)) reply = 'moved';
    }
    if (ambiguous) frame.rememberGone(rid);
    return reply;
  }

  #leaveQueues(rid: string): boolean {
    if (this.#upgrade?.writeRid === rid) {
      this.#upgrade = null;
      return true;
    }
    return this.#readQueue.leave(rid) || this.#writeQueue.leave(rid);
  }

  renew(frame: Frame, { rid, leaseMs, info, exactly }: RenewRequest): boolean {
    this.prune(frame.nowMs);
    const held = this.#heldBy(rid);
    if (!held) return false;
    this.#renew(held, frame.nowMs, leaseMs, info, exactly);
    return true;
  }

  change(frame: Frame, request: ChangeRequest): ChangeReply {
    this.prune(frame.nowMs);
    const { nextRid, to, leaseMs } = request;
    const changed = to === 'write' ? this.#writer : this.#readers.get(nextRid);
    if (changed?.rid === nextRid) {
      // Sent again because its reply was lost, or to confirm.
      this.#renew(changed, frame.nowMs, leaseMs, '');
      return { outcome: 'granted', token: changed.token };
    }
    if (frame.isGone(nextRid)) return { outcome: 'absent' };
    return to === 'write' ? this.#toWrite(frame, request) : this.#toRead(frame, request);
  }

  #toWrite(frame: Frame, { rid, nextRid, leaseMs, queue, info }: ChangeRequest): ChangeReply {
    if (!this.#readers.get(rid)) return { outcome: 'absent' };
    // Each would wait for the other to stop reading.
    const other = this.#upgrade && this.#upgrade.readRid !== rid ? this.#upgrade : null;
    // One that died while it waited blocks nobody.
    if (other && frame.hears(other.writeRid)) return { outcome: 'busy' };
    if (this.#readers.size === 1) {
      this.#upgrade = null;
      // Should its reply be lost, the reader believes in its old lease.
      const leftMs = this.#readers.get(rid)!.endMs - frame.nowMs;
      this.#readers.remove(rid);
      return { outcome: 'granted', token: this.#enter(frame, nextRid, 'write', Math.max(leaseMs, leftMs), info) };
    }
    if (!queue) return { outcome: 'busy' };
    this.#upgrade = { readRid: rid, writeRid: nextRid };
    return { outcome: 'queued', retryMs: this.#readers.longestMsBut(rid, frame.nowMs), ticket: 0 };
  }

  #toRead(frame: Frame, { rid, nextRid, leaseMs, handOverMs, info }: ChangeRequest): ChangeReply {
    if (this.#writer?.rid !== rid) return { outcome: 'absent' };
    const { token, permits } = this.#writer;
    this.#writer = null;
    const endMs = frame.nowMs + leaseMs;
    this.#readers.add({ rid: nextRid, token, permits, sinceMs: frame.wallMs, endMs, info });
    // The phase of the readers begins: writers that wait have theirs after it.
    this.#letReadersIn(frame, handOverMs, null);
    return { outcome: 'granted', token };
  }

  force(frame: Frame, handOverMs: number, _limit: number): readonly HolderState[] {
    const { holders } = this.inspect(frame.nowMs);
    this.#writer = null;
    this.#readers.clear();
    this.#upgrade = null;
    this.#settle(frame, 'unknown', handOverMs);
    for (const { rid } of holders) frame.tell('lost', rid);
    return holders;
  }

  inspect(nowMs: number): Sight {
    this.prune(nowMs);
    const holders = [...this.#readers].map((hold) => holderOf(hold, 'read', nowMs));
    if (this.#writer) holders.push(holderOf(this.#writer, 'write', nowMs));
    const shown =
      (mode: Mode) =>
      ({ rid, permits, ticket }: Place): WaiterState => ({ rid, mode, permits, ticket });
    const waiters = [
      ...this.#readQueue.take(100).map(shown('read')),
      ...this.#writeQueue.take(100).map(shown('write')),
    ];
    waiters.sort((a, b) => a.ticket - b.ticket);
    return {
      holders,
      waiters: waiters.slice(0, 100),
      waiting: this.#readQueue.size + this.#writeQueue.size,
      limit: null,
    };
  }
}
