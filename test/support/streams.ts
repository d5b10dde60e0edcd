import type { Cluster, Redis } from 'ioredis';
import { type LikeEvent, likeChannel, type Subject, shardOf } from '../../src/model/like.ts';
import { LIKE_ENTRIES } from '../../src/model/like-entry.ts';
import type { OrderMessage } from '../../src/model/order.ts';
import { encodeEntry, encodePlacedBy } from '../../src/model/stream-entry.ts';
import type { Channels } from '../../src/pipe/channels.ts';
import { LIKES } from '../../src/pipe/likes.ts';
import { ORDERS } from '../../src/pipe/orders.ts';

export function orderMessage(orderId: string, over: Partial<OrderMessage> = {}): OrderMessage {
  return {
    orderId,
    saleId: '1',
    itemId: '2',
    itemCode: 'v',
    buyer: 'b',
    quantity: 1,
    slots: [1],
    price: { amount: 1, currency: 'CNY' },
    payWithinSeconds: 1,
    epoch: 1,
    key: null,
    fingerprint: 'f',
    ...over,
  };
}

/** One stream entry for a whole batch of one process, as the gate's script writes it. */
export function entryOf(messages: readonly OrderMessage[]): string[] {
  // All messages are of one item: take the header and the item of the first.
  const groups = messages.flatMap((message) => encodeEntry(message).slice(4, 6));
  const placed = messages.some(({ placedBy }) => placedBy !== undefined) ? ['by', encodePlacedBy(messages)] : [];
  return [...encodeEntry(messages[0]!).slice(0, 4), ...groups, ...placed];
}

/** A subject whose likes go through this channel. */
export function subjectIn(channel: string): Subject {
  for (let post = 1; ; post++) {
    const subject = `post:${post}` as const;
    if (likeChannel(shardOf(subject)) === channel) return subject;
  }
}

export function likeEvent(n: number, over: Partial<LikeEvent> = {}): LikeEvent {
  return { subject: 'post:1', user: `u${n}`, liked: true, epoch: 1, n, atMs: 1_700_000_000_000, ...over };
}

/** One stream entry for all likes of one call. Neighbours of one subject share a field. */
export function likeEntryOf(events: readonly LikeEvent[]): string[] {
  const fields: string[] = LIKE_ENTRIES.encode(events[0]!).slice(0, 2);
  for (let from = 0; from < events.length; ) {
    const { subject } = events[from]!;
    let to = from + 1;
    while (to < events.length && events[to]!.subject === subject) to++;
    const lines = events.slice(from, to).map(({ n, liked, user }) => `${n}\n${liked ? '+' : '-'}${user}`);
    fields.push(`l${to - from}`, [subject, ...lines].join('\n'));
    from = to;
  }
  return fields;
}

/** Messages of one kind for tests of any pipe, in channels with small numbers. */
export interface TestKind<M> {
  readonly channels: Channels<M>;
  /** The name of the channel with this number, 1 … 7. */
  channel(number: number): string;
  /** `id`: a number that tells it from the others of a test. */
  message(id: number, channel: number): M;
  idIn(message: M): string;
  /** Its text has everything that text may have. In channel 1. */
  readonly odd: M;
  /** Messages of another format, of one step. In channel 1. */
  readonly newer: readonly M[];
  /** The entry for all messages of one step. */
  entryOf(messages: readonly M[]): string[];
  /** Where that entry belongs, spelled out: what the pipe reads is not compared with its own names. */
  placeOf(prefix: string, message: M): Place;
}

interface Place {
  /** Set and member that list the channel. */
  readonly listed: readonly [set: string, member: string] | null;
  readonly epochs: string;
  readonly stream: string;
  readonly wake: readonly [channel: string, message: string];
  readonly epoch: number;
}

export const TEST_ORDERS: TestKind<OrderMessage> = {
  channels: ORDERS,
  channel: (number) => `sale:${number}`,
  message: (id, channel) => orderMessage(String(id), { saleId: String(channel) }),
  idIn: ({ orderId }) => orderId,
  odd: orderMessage('9007199254740993', {
    buyer: '买家 ☃ 𝄞 "\\',
    key: 'k 1',
    slots: [1, 3, 40],
    quantity: 3,
    price: { amount: 1999, currency: 'EUR' },
    payWithinSeconds: 900,
    itemId: '18014398509481985',
    itemCode: 'vip:a.b',
    fingerprint: 'vip:a.b x3',
    from: 'p-1',
  }),
  newer: [
    orderMessage('11', { buyer: '买家 ☃', slots: [2, 5], quantity: 2, seats: [0, 99_999], fingerprint: 'v s0.99999' }),
    orderMessage('12', { buyer: 'b', key: 'k 1', seats: [7], fingerprint: 'v x1 together' }),
  ],
  entryOf,
  placeOf: (prefix, { saleId, epoch }) => ({
    listed: [`${prefix}:sales`, saleId],
    epochs: `${prefix}:{${saleId}:0}:epochs`,
    stream: `${prefix}:{${saleId}:0}:${epoch}:stream`,
    wake: [`${prefix}:wake`, `${saleId} ${epoch}`],
    epoch,
  }),
};

export const TEST_LIKES: TestKind<LikeEvent> = {
  channels: LIKES,
  channel: (number) => `likes:${number}`,
  message: (id, channel) => likeEvent(id, { subject: subjectIn(`likes:${channel}`), liked: id % 3 > 0 }),
  idIn: ({ n }) => String(n),
  odd: likeEvent(900_719_925_474_099, {
    subject: subjectIn('likes:1'),
    user: '+-买家 ☃ 𝄞 "\\ l2',
    liked: false,
  }),
  newer: [],
  entryOf: likeEntryOf,
  placeOf: (prefix, { subject, epoch }) => {
    const begin = `${prefix}:{likes:${shardOf(subject)}}:`;
    return {
      listed: null,
      epochs: `${begin}epochs`,
      stream: `${begin}${epoch}:stream`,
      wake: [`${prefix}:wake:likes`, `likes:${shardOf(subject)} ${epoch}`],
      epoch,
    };
  },
};

/** Takes the place of whatever decides: writes stream entries as its script does. */
export class Feeder<M> {
  readonly client: Redis | Cluster;
  readonly #prefix: string;
  readonly #kind: TestKind<M>;

  constructor(client: Redis | Cluster, prefix: string, kind: TestKind<M>) {
    this.client = client;
    this.#prefix = prefix;
    this.#kind = kind;
  }

  /** One entry, with its wake-up. */
  async write(messages: readonly M[], { wake = true } = {}): Promise<void> {
    const place = await this.#prepare(messages[0]!);
    await this.client.xadd(place.stream, '*', ...this.#kind.entryOf(messages));
    if (wake) await this.client.publish(...place.wake);
  }

  /** Writes many entries of one message each, all of one channel and epoch, in one go, with one wake-up. */
  async writeEach(messages: readonly M[], { wake = true } = {}): Promise<void> {
    const place = await this.#prepare(messages[0]!);
    const pipeline = this.client.pipeline();
    for (const message of messages) pipeline.xadd(place.stream, '*', ...this.#kind.entryOf([message]));
    const failed = (await pipeline.exec())?.find(([error]) => error)?.[0];
    if (failed) throw failed;
    if (wake) await this.client.publish(...place.wake);
  }

  async #prepare(message: M): Promise<Place> {
    const place = this.#kind.placeOf(this.#prefix, message);
    if (place.listed !== null) await this.client.sadd(...place.listed);
    await this.client.sadd(place.epochs, String(place.epoch));
    return place;
  }
}

/** Takes the place of the gate. */
export class StreamFeeder extends Feeder<OrderMessage> {
  readonly #prefix: string;

  constructor(client: Redis | Cluster, prefix: string) {
    super(client, prefix, TEST_ORDERS);
    this.#prefix = prefix;
  }

  key(saleId: string, part: string): string {
    return `${this.#prefix}:{${saleId}:0}:${part}`;
  }

  stream(saleId = '1', epoch = 1): string {
    return this.key(saleId, `${epoch}:stream`);
  }

  /** Makes this the current epoch of the sale. */
  async open(saleId: string, epoch: number): Promise<void> {
    await this.client.sadd(`${this.#prefix}:sales`, saleId);
    await this.client.sadd(this.key(saleId, 'epochs'), String(epoch));
    await this.client.hset(this.key(saleId, 'gate'), 'epoch', String(epoch));
  }
}
