import { InvariantError, TerminalError } from '../../base/errors.ts';
import type { KeepAlive } from '../../base/keep-alive.ts';
import type { RedisTarget } from '../../base/redis/address.ts';
import { RedisLink, RedisUnavailableError } from '../../base/redis/link.ts';
import { scriptsBeside } from '../../base/redis/scripts.ts';
import { bulk, partsOf } from '../../base/redis/sent-script.ts';
import type { Runtime } from '../../base/runtime.ts';
import { UnavailableError } from '../client/errors.ts';
import type {
  AcquireReply,
  AcquireRequest,
  Address,
  ChangeReply,
  ChangeRequest,
  ClockReading,
  HolderState,
  LatchState,
  LockKind,
  LockState,
  LockStore,
  ReleaseReply,
  ReleaseRequest,
  RenewRequest,
  StoreEvents,
  Wake,
} from '../client/port.ts';
import { Batches, type Command, failureIn, type Verb as Question } from './batches.ts';
import { inspectionOf } from './inspection.ts';
import { Layout } from './layout.ts';

type BatchedVerb = 'acquire' | 'release' | 'renew';
type Verb = BatchedVerb | 'force' | 'inspect';

/** Which script serves a verb, and the keys of one lock in the order that script takes them. */
type Family = Record<Verb, readonly [script: string, parts: readonly string[]]>;

const MUTEX: Family = {
  acquire: ['mutex-serve', ['lock', 'queue']],
  release: ['mutex-serve', ['lock', 'queue']],
  renew: ['mutex-renew', ['lock']],
  force: ['mutex-force', ['lock', 'queue']],
  inspect: ['mutex-inspect', ['lock', 'queue']],
};
const READWRITE_PARTS = ['writer', 'readers', 'details', 'read-queue', 'write-queue'];
const LATCH_PARTS = ['count', 'counted', 'waiters'];
const SEMAPHORE_PARTS = ['holders', 'details', 'queue', 'size'];

function family(name: string, parts: readonly string[]): Family {
  const verbs: Verb[] = ['acquire', 'release', 'renew', 'force', 'inspect'];
  return Object.fromEntries(verbs.map((verb) => [verb, [`${name}-${verb}`, parts]])) as unknown as Family;
}

const FAMILIES: Record<LockKind, Family> = {
  mutex: MUTEX,
  fair: MUTEX,
  once: { ...MUTEX, acquire: ['once-acquire', ['lock', 'queue', 'result']] },
  readwrite: family('readwrite', READWRITE_PARTS),
  semaphore: family('semaphore', SEMAPHORE_PARTS),
};
/** Parts whose presence shows that a lock is held or waited for; the others live no longer than these. */
const TELLING: Record<LockKind, readonly string[]> = {
  mutex: ['lock', 'queue'],
  fair: ['lock', 'queue'],
  once: ['lock', 'queue'],
  readwrite: ['writer', 'readers', 'read-queue', 'write-queue'],
  semaphore: ['holders', 'queue'],
};
/** By the script's number. */
const RELEASED: readonly ReleaseReply[] = ['absent', 'released', 'handed', 'dequeued', 'moved'];

/** A reading with a longer round trip says less about the server's clock, but an old one drifts: replaced after this. */
const READING_MS_MAX = 10_000;

const scriptNamed = scriptsBeside(import.meta.url);

export interface RedisStoreOptions {
  readonly target: RedisTarget;
  readonly prefix: string;
  readonly commandMs: number;
  readonly handOverMs: number;
  readonly attentive: boolean;
  readonly keepAlive: KeepAlive;
}

export class RedisLockStore implements LockStore {
  readonly client: string;
  readonly place: string;
  readonly remote = true;
  readonly events: StoreEvents;
  readonly #link: RedisLink;
  readonly #layout: Layout;
  readonly #runtime: Runtime;
  readonly #commandMs: number;
  readonly #graceMs: number;
  readonly #acquires = new Map<LockKind, Batches<Address>>();
  readonly #releases = new Map<LockKind, Batches<Address>>();
  readonly #renewals = new Map<LockKind, Batches<Address>>();
  #reading: (ClockReading & { roundTripMs: number }) | null = null;

  constructor(options: RedisStoreOptions, runtime: Runtime, events: StoreEvents) {
    this.client = runtime.random.secret(8);
    this.events = events;
    this.#runtime = runtime;
    this.#commandMs = options.commandMs;
    this.#graceMs = options.handOverMs;
    const linkOptions = { commandMs: options.commandMs, attentive: options.attentive };
    this.#link = new RedisLink(options.target, linkOptions, runtime, options.keepAlive, {
      message: (channel, message) => this.#heard(channel, message),
      interrupted: () => {
        // It may be another server now, with another clock.
        this.#reading = null;
        events.interrupted();
      },
      unreachable: (reason) => runtime.log.warn({ redis: this.#link.place, reason }, 'Redis cannot be reached'),
    });
    this.#layout = new Layout(options.prefix, this.#link.cluster);
    this.place = `redis:${this.#link.place}:${options.prefix}`;
  }

  get clock(): ClockReading | null {
    return this.#reading;
  }

  get trouble(): string | null {
    const { trouble, place } = this.#link;
    return trouble === null ? null : `no connection to ${place}: ${trouble}`;
  }

  readonly #read = (sentMs: number, storeUs: number): void => {
    const nowMs = this.#runtime.clock.monotonic();
    const roundTripMs = nowMs - sentMs;
    const last = this.#reading;
    if (!last || roundTripMs <= last.roundTripMs || nowMs - last.sentMs > READING_MS_MAX) {
      this.#reading = { sentMs, storeUs, roundTripMs };
    }
  };

  #keys(kind: LockKind | 'latch', name: string, parts: readonly string[]): string[] {
    const bucket = this.#layout.bucketOf(name);
    return parts.map((part) => this.#layout.key(bucket, kind, part, name));
  }

  /** The batches of a verb for a kind; made at first use. */
  #batches(all: Map<LockKind, Batches<Address>>, verb: BatchedVerb, kind: LockKind): Batches<Address> {
    let batches = all.get(kind);
    if (!batches) {
      const { acquire, [verb]: mine } = FAMILIES[kind];
      // Where one script serves both, what is taken and what is given back go in one call.
      const shared = verb === 'release' && mine[0] === acquire[0];
      batches = shared ? this.#batches(this.#acquires, 'acquire', kind) : this.#newBatches(kind, verb);
      all.set(kind, batches);
    }
    return batches;
  }

  #newBatches(kind: LockKind, verb: BatchedVerb): Batches<Address> {
    const [script, parts] = FAMILIES[kind][verb];
    const command: Command<Address> = {
      script: scriptNamed(script),
      graceMs: this.#graceMs,
      keys: parts.length,
      args: ARGS[verb](kind),
      writeKeys: (bucket, { name }) => this.#writeKeys(bucket, kind, parts, name),
      failed: asLockError,
    };
    return new Batches(this.#link, this.#layout, this.#runtime, command, this.#read);
  }

  #writeKeys(bucket: number, kind: LockKind, parts: readonly string[], name: string): string {
    const bytes = Buffer.byteLength(name);
    let wire = '';
    for (const begin of this.#layout.begins(bucket, kind, parts)) {
      wire += `$${begin.length + bytes}\r\n${begin}${name}\r\n`;
    }
    return wire;
  }

  acquire(request: AcquireRequest): Promise<AcquireReply> {
    return this.#batches(this.#acquires, 'acquire', request.kind).send(
      this.#layout.bucketOf(request.name),
      ACQUIRE,
      request,
    );
  }

  release(request: ReleaseRequest): Promise<ReleaseReply> {
    return this.#batches(this.#releases, 'release', request.kind).send(
      this.#layout.bucketOf(request.name),
      RELEASE,
      request,
    );
  }

  renew(request: RenewRequest): Promise<boolean> {
    return this.#batches(this.#renewals, 'renew', request.kind).send(
      this.#layout.bucketOf(request.name),
      RENEW,
      request,
    );
  }

  /** One command that is not batched: its script, and the keys and arguments after the frame. */
  #one(
    script: string,
    { kind, name }: { readonly kind: LockKind | 'latch'; readonly name: string },
    parts: readonly string[],
    args: readonly (string | number)[],
  ): Promise<unknown> {
    const bucket = this.#layout.bucketOf(name);
    const keys = this.#keys(kind, name, parts);
    return this.#guard(this.#link.script(scriptNamed(script), ...this.#framed(bucket, keys, args)));
  }

  #framed(
    bucket: number,
    keys: readonly string[],
    args: readonly (string | number)[],
  ): [string[], (string | number)[]] {
    const publish = this.#link.cluster ? 'SPUBLISH' : 'PUBLISH';
    return [
      [this.#layout.clock(bucket), this.#layout.gone(bucket), ...keys],
      [this.#layout.channel(bucket), publish, this.#graceMs, ...args],
    ];
  }

  async acquireReplicated(
    request: AcquireRequest,
    replicas: number,
    timeoutMs: number,
  ): Promise<[AcquireReply, number]> {
    if (this.#link.cluster) {
      throw new TerminalError('lock_replicas', 'replicas cannot be awaited in a cluster: WAIT needs one server');
    }
    const bucket = this.#layout.bucketOf(request.name);
    const args = partsOf(acquireArgs(request));
    const [name, parts] = FAMILIES[request.kind].acquire;
    const script = scriptNamed(name);
    const [keys, framed] = this.#framed(bucket, this.#keys(request.kind, request.name, parts), args);
    const sentMs = this.#runtime.clock.monotonic();
    // The text and not the digest: both go in one row, and WAIT must not run after a NOSCRIPT.
    const replies = await this.#guard(
      this.#link.inARow(
        [
          ['eval', script.lua, keys.length, ...keys, ...framed],
          ['wait', replicas, timeoutMs],
        ],
        this.#commandMs + timeoutMs,
      ),
    );
    // The short answer is the token alone, which is (nearly) the time.
    const [storeUs, reply] =
      typeof replies[0] === 'number' ? [replies[0], replies[0]] : (replies[0] as [number, unknown]);
    this.#read(sentMs, storeUs);
    const failure = failureIn(reply);
    if (failure !== null) throw asLockError(this.#link.failure(failure, 'EVAL'));
    return [acquireReply(reply), replies[1] as number];
  }

  async change(request: ChangeRequest): Promise<ChangeReply> {
    const args = [request.rid, request.nextRid, request.to, request.leaseMs, request.queue ? 1 : 0, request.info];
    const reply = await this.#one('readwrite-change', request, READWRITE_PARTS, args);
    if (typeof reply === 'number') return { outcome: 'granted', token: reply };
    const [code, retryMs, ticket] = reply as [number, number, number];
    if (code === 0) return { outcome: 'queued', retryMs, ticket };
    return { outcome: code === -1 ? 'busy' : 'absent' };
  }

  async force(address: Address, _handOverMs: number, limit: number): Promise<readonly HolderState[]> {
    const before = await this.inspect(address);
    const [script, parts] = FAMILIES[address.kind].force;
    const taken = (await this.#one(script, address, parts, [limit])) as string[];
    return before.holders.filter((each) => taken.includes(each.rid));
  }

  async raise(address: Address, rid: string, token: number): Promise<boolean> {
    return (await this.#one('mutex-raise', address, ['lock'], [rid, token])) === 1;
  }

  async inspect(address: Address): Promise<LockState> {
    const [script, parts] = FAMILIES[address.kind].inspect;
    return inspectionOf(address, (await this.#one(script, address, parts, [])) as unknown[]);
  }

  async list(kinds: readonly LockKind[]): Promise<LockState[]> {
    const found = new Map<string, Address>();
    await this.#guard(
      this.#link.eachNode(async (node) => {
        for (const kind of kinds) {
          for (const part of TELLING[kind]) {
            let cursor = '0';
            do {
              const [next, keys] = await node.scan(cursor, 'MATCH', this.#layout.pattern(kind, part), 'COUNT', 1000);
              for (const key of keys) {
                const name = this.#layout.nameIn(key, kind, part);
                found.set(`${kind} ${name}`, { kind, name });
              }
              cursor = next;
            } while (cursor !== '0');
          }
        }
      }),
    );
    const states = await Promise.all([...found.values()].map((address) => this.inspect(address)));
    return states.filter((state) => state.holders.length > 0 || state.waiting > 0);
  }

  async resize(name: string, limit: number | null, defaultLimit: number): Promise<void> {
    const args = [limit ?? '', defaultLimit];
    await this.#one('semaphore-resize', { kind: 'semaphore', name }, SEMAPHORE_PARTS, args);
  }

  async finish(name: string, rid: string, result: string, keepMs: number): Promise<boolean> {
    const parts = ['lock', 'queue', 'result'];
    return (await this.#one('once-finish', { kind: 'once', name }, parts, [rid, result, keepMs])) === 1;
  }

  async forget(name: string): Promise<boolean> {
    return (await this.#guard(this.#link.call('DEL', this.#keys('once', name, ['result'])))) === 1;
  }

  async latchSet(name: string, count: number, keepMs: number): Promise<void> {
    await this.#one('latch-set', { kind: 'latch', name }, LATCH_PARTS, [count, keepMs]);
  }

  async latchDown(name: string, rid: string, by: number, keepMs: number): Promise<number> {
    return (await this.#one('latch-down', { kind: 'latch', name }, LATCH_PARTS, [rid, by, keepMs])) as number;
  }

  async latchLook(name: string, rid: string | null): Promise<LatchState> {
    const reply = (await this.#one('latch-look', { kind: 'latch', name }, LATCH_PARTS, [rid ?? ''])) as number[];
    return { count: reply[0]!, exists: reply[1] === 1 };
  }

  async latchLeave(name: string, rid: string): Promise<void> {
    await this.#one('latch-leave', { kind: 'latch', name }, LATCH_PARTS, [rid]);
  }

  hears({ name }: { readonly name: string }): boolean {
    return this.#link.hears(this.#layout.channel(this.#layout.bucketOf(name)) + this.client);
  }

  listen({ name }: { readonly name: string }): Promise<void> {
    return this.#guard(this.#link.listen(this.#layout.channel(this.#layout.bucketOf(name)) + this.client));
  }

  #heard(_channel: string, message: string): void {
    const [event, rid = '', token, atUs] = message.split(' ');
    if (event === 'granted') this.events.wake({ event, rid, token: Number(token), atUs: Number(atUs) });
    else if (event === 'lost' || event === 'look') this.events.wake({ event, rid } satisfies Wake);
  }

  async #guard<T>(promise: Promise<T>): Promise<T> {
    try {
      return await promise;
    } catch (error) {
      throw asLockError(error);
    }
  }

  async close(): Promise<void> {
    this.#link.close();
  }
}

/** How many arguments a request has after the frame. */
const ARGS: Record<BatchedVerb, (kind: LockKind) => number> = {
  acquire: (kind) => (kind === 'readwrite' ? 5 : kind === 'semaphore' ? 6 : 4),
  release: (kind) => (kind === 'readwrite' ? 3 : 4),
  renew: (kind) => (kind === 'readwrite' ? 5 : 4),
};

/** Plain characters only, so that their number is their length on the wire. */
const plain = (text: string): string => `$${text.length}\r\n${text}\r\n`;

/** What follows the id is nearly always the same as the last time. */
let tail = { leaseMs: 0, place: '', info: '', wire: '' };

function acquireArgs(request: AcquireRequest): string {
  const { rid, leaseMs, queue, ticket, info, kind } = request;
  const place = queue ? (ticket === 0 ? '0' : String(ticket)) : '';
  if (tail.leaseMs !== leaseMs || tail.place !== place || tail.info !== info) {
    tail = { leaseMs, place, info, wire: plain(String(leaseMs)) + plain(place) + bulk(info) };
  }
  const wire = plain(rid) + tail.wire;
  if (kind === 'readwrite') return wire + plain(request.mode);
  if (kind === 'semaphore') return wire + plain(String(request.permits)) + plain(String(request.limit));
  return wire;
}

function acquireReply(reply: unknown): AcquireReply {
  if (typeof reply === 'number') return { outcome: 'granted', token: reply };
  const [code, detail, ticket, rejoined] = reply as [number, number | string, number, number?];
  switch (code) {
    case 0:
      return { outcome: 'queued', retryMs: detail as number, ticket, rejoined: rejoined === 1 };
    case -1:
      return { outcome: 'held', retryMs: detail as number, ticket: 0 };
    case -2:
      return { outcome: 'gone' };
    case -3:
      return { outcome: 'done', result: detail as string };
    default:
      throw new InvariantError(`an acquire answered ${code}`);
  }
}

function releaseArgs(request: ReleaseRequest): string {
  const { kind, rid, ambiguous } = request;
  if (kind === 'readwrite' || kind === 'semaphore') {
    const wire = plain(rid) + (ambiguous ? '$1\r\n1\r\n' : '$1\r\n0\r\n');
    if (kind === 'readwrite') return wire + plain(request.backTo);
    return wire + plain(String(request.permits)) + plain(String(request.limit));
  }
  // As many as to take: both go in one call.
  return `${plain(rid)}${ambiguous ? '$1\r\n!\r\n' : '$1\r\n-\r\n'}$0\r\n\r\n$0\r\n\r\n`;
}

function releaseReply(reply: unknown): ReleaseReply {
  if (typeof reply === 'number') return RELEASED[reply]!;
  const [given, to] = reply as [number, string];
  return { given, to };
}

function renewArgs(request: RenewRequest): string {
  const exactly = request.exactly ? '$1\r\n1\r\n' : '$1\r\n0\r\n';
  const wire = plain(request.rid) + plain(String(request.leaseMs)) + bulk(request.info) + exactly;
  return request.kind === 'readwrite' ? wire + plain(request.mode) : wire;
}

const ACQUIRE: Question<AcquireRequest, AcquireReply> = { timed: true, write: acquireArgs, read: acquireReply };
const RELEASE: Question<ReleaseRequest, ReleaseReply> = { timed: false, write: releaseArgs, read: releaseReply };
const RENEW: Question<RenewRequest, boolean> = { timed: false, write: renewArgs, read: (reply) => reply === 1 };

/** The port speaks of locks: whoever calls it need not know that there is a Redis. */
function asLockError(error: unknown): unknown {
  if (!(error instanceof RedisUnavailableError)) return error;
  return new UnavailableError(`redis: ${error.message}`, { cause: error });
}
