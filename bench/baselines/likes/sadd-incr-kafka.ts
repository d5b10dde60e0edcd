// The document's §3 (docs/concepts/sources.md, 001) in its corrected version: SADD; if the user is new, INCR and one Kafka event, whose
// confirmation the caller does not wait for. Nobody consumes the events.
import { Admin, Producer } from '@platformatic/kafka';
import { Redis } from 'ioredis';

export interface EventWay {
  /** ioredis sends the commands of one turn of the event loop together. */
  readonly autoPipelining: boolean;
  /** Events that arrive while a request is under way share the next one, as in Java's client; else one request each. */
  readonly batched: boolean;
}

const TOPIC = 'like-topic';

export class SaddIncrKafka {
  readonly #redis: Redis;
  readonly #producer: Producer;
  readonly #batched: boolean;
  readonly #requests = new Set<Promise<void>>();
  #waiting: Buffer[] = [];

  private constructor(redis: Redis, producer: Producer, batched: boolean) {
    this.#redis = redis;
    this.#producer = producer;
    this.#batched = batched;
  }

  static async createTopic(kafka: string): Promise<void> {
    const admin = new Admin({ clientId: 'likes', bootstrapBrokers: [kafka.replace('kafka://', '')] });
    await admin.createTopics({ topics: [TOPIC], partitions: 1, replicas: 1 });
    await admin.close();
  }

  static async open(redis: string, kafka: string, { autoPipelining, batched }: EventWay): Promise<SaddIncrKafka> {
    const producer = new Producer({ clientId: 'likes', bootstrapBrokers: [kafka.replace('kafka://', '')], acks: -1 });
    return new SaddIncrKafka(new Redis(redis, { enableAutoPipelining: autoPipelining }), producer, batched);
  }

  async like(postId: string, userId: number): Promise<void> {
    const added = await this.#redis.sadd(`post:${postId}:likes_users`, userId);
    if (added === 0) return;
    await this.#redis.incr(`post:${postId}:likes_count`);
    this.#send(Buffer.from(`like,${postId},${userId}`));
  }

  #send(event: Buffer): void {
    this.#waiting.push(event);
    if (!this.#batched || this.#requests.size === 0) this.#request();
  }

  #request(): void {
    const messages = this.#waiting.map((value) => ({ topic: TOPIC, partition: 0, value }));
    this.#waiting = [];
    const request = this.#producer.send({ messages, acks: -1 }).then(() => {
      this.#requests.delete(request);
      if (this.#waiting.length > 0) this.#request();
    });
    this.#requests.add(request);
  }

  /** Resolves when all events are confirmed. */
  async flushed(): Promise<void> {
    while (this.#requests.size > 0) await Promise.all(this.#requests);
  }

  async clear(ids: readonly string[]): Promise<void> {
    await this.#redis.unlink(...ids.flatMap((id) => [`post:${id}:likes_users`, `post:${id}:likes_count`]));
  }

  async end(): Promise<void> {
    this.#redis.disconnect();
    await this.#producer.close();
  }
}
