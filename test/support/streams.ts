import type { Cluster, Redis } from 'ioredis';
import type { OrderMessage } from '../../src/model/order.ts';
import { encodeEntry, encodePlacedBy } from '../../src/model/stream-entry.ts';

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

/** Takes the place of the gate: writes stream entries as it does. */
export class StreamFeeder {
  readonly client: Redis | Cluster;
  readonly #prefix: string;

  constructor(client: Redis | Cluster, prefix: string) {
    this.client = client;
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

  /** One entry, with its wake-up. */
  async write(messages: readonly OrderMessage[], { wake = true } = {}): Promise<void> {
    const { saleId, epoch } = messages[0]!;
    await this.client.sadd(`${this.#prefix}:sales`, saleId);
    await this.client.sadd(this.key(saleId, 'epochs'), String(epoch));
    await this.client.xadd(this.stream(saleId, epoch), '*', ...entryOf(messages));
    if (wake) await this.client.publish(`${this.#prefix}:wake`, `${saleId} ${epoch}`);
  }

  /** Writes many entries of one order each, all of one sale and epoch, in one go, with one wake-up. */
  async writeEach(messages: readonly OrderMessage[], { wake = true } = {}): Promise<void> {
    const { saleId, epoch } = messages[0]!;
    await this.client.sadd(`${this.#prefix}:sales`, saleId);
    await this.client.sadd(this.key(saleId, 'epochs'), String(epoch));
    const pipeline = this.client.pipeline();
    for (const message of messages) pipeline.xadd(this.stream(saleId, epoch), '*', ...encodeEntry(message));
    const failed = (await pipeline.exec())?.find(([error]) => error)?.[0];
    if (failed) throw failed;
    if (wake) await this.client.publish(`${this.#prefix}:wake`, `${saleId} ${epoch}`);
  }
}
