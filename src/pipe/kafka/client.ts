import { Admin, type Base, type BaseOptions, type Broker, type Connection, Producer } from '@platformatic/kafka';
import { messageOf, type RetryableError, unavailable } from '../../base/errors.ts';
import { type Timers, within } from '../../base/timers.ts';
import type { KafkaAddress } from './address.ts';

/** How long what may take. */
export interface Spans {
  readonly connectMs: number;
  readonly answerMs: number;
}

/**
 * Makes clients of the library. They try nothing again by themselves: what to do about a failure is decided in one place,
 * and what failed is thrown away with all that it knew.
 */
export class Clients {
  readonly #address: KafkaAddress;
  readonly #clientId: string;
  /** Whom a client asks first; the others only if that one cannot be connected to. */
  #brokers: readonly Broker[];
  readonly #asked = new WeakMap<Base, Broker>();

  constructor(address: KafkaAddress, clientId: string) {
    this.#address = address;
    this.#clientId = clientId;
    this.#brokers = address.brokers;
  }

  admin(spans: Spans): Admin {
    return this.#made(new Admin(this.#options(spans)));
  }

  /** Made sure of by all replicas that are in sync; what the library has to send twice is written once. */
  producer(spans: Spans): Producer {
    // Fewer than two tries would mean without end.
    return this.#made(new Producer({ ...this.#options(spans), idempotent: true, retries: 4, retryDelay: 100 }));
  }

  /** It was of no use, perhaps since a broker takes connections and does not answer: the next one asks another first. */
  fail(client: Base): void {
    const [first, ...others] = this.#brokers;
    if (this.#asked.get(client) === first) this.#brokers = [...others, first!];
    drop(client);
  }

  #made<Client extends Base>(client: Client): Client {
    this.#asked.set(client, this.#brokers[0]!);
    // An error that nobody waits for any more (refused, then reset) has no listener: it would end the process.
    client.connections.on('connecting', ({ connection }) => connection.on('error', () => {}));
    return client;
  }

  #options({ connectMs, answerMs }: Spans): BaseOptions {
    const { tls, sasl } = this.#address;
    return {
      clientId: this.#clientId,
      bootstrapBrokers: [...this.#brokers],
      connectTimeout: connectMs,
      requestTimeout: answerMs,
      timeout: answerMs,
      retries: 0,
      ...(tls ? { tls: {} } : {}),
      ...(sasl ? { sasl: { ...sasl } } : {}),
    };
  }
}

/** At once, whatever it waits for; that is rejected. */
export function drop(client: Base): void {
  const connections = [...client.connections].map(([, connection]) => connection);
  // Closing waits until everything is written, and a broker that hangs does not read.
  client.close().catch(() => {});
  for (const { socket } of connections) socket?.destroy();
}

/** To this broker of the cluster. */
export async function connectionTo(client: Base, node: number): Promise<Connection> {
  const connection = (await client.connectToBrokers([node])).get(node);
  if (connection === undefined) throw unavailable(`the cluster has no broker ${node} now`);
  return connection;
}

/** The library has its own limits; this one holds if an answer is lost within it. */
export async function answered<T>(timers: Timers, answer: Promise<T>, ms: number): Promise<T> {
  const reply = await within(
    timers,
    answer.then((value) => ({ value })),
    ms,
  );
  if (reply === null) throw noAnswer(ms);
  return reply.value;
}

export function noAnswer(ms: number): RetryableError {
  return unavailable(`no answer within ${ms} ms`);
}

// What an error of the library says

interface Told {
  readonly message: string;
  readonly code?: string;
  /** Of what the broker answered: its name in the protocol. */
  readonly apiId?: string;
  readonly serverErrorMessage?: string | null;
  readonly errors?: readonly unknown[];
  readonly cause?: unknown;
}

/** The error with all that it is made of, the innermost first. */
function* parts(error: unknown, depth = 0): Generator<Told> {
  if (!(error instanceof Error) || depth > 8) return;
  const told = error as Told;
  for (const inner of told.errors ?? []) yield* parts(inner, depth + 1);
  yield* parts(told.cause, depth + 1);
  yield told;
}

/** Whether the broker answered with one of these. */
export function says(error: unknown, ...ids: readonly string[]): boolean {
  for (const { apiId } of parts(error)) if (apiId !== undefined && ids.includes(apiId)) return true;
  return false;
}

/** In one line, without what the error holds beside it (requests and answers). */
export function reasonOf(error: unknown): string {
  for (const { message, code, apiId, serverErrorMessage } of parts(error)) {
    if (apiId !== undefined) return oneLine(`${apiId}: ${serverErrorMessage || message}`);
    return oneLine(message || code || 'no reason given');
  }
  return messageOf(error);
}

function oneLine(text: string): string {
  return text.replace(/\s+/g, ' ').replace(/\.$/, '');
}

const LOGIN = /^(SASL_AUTHENTICATION_FAILED|ILLEGAL_SASL_STATE)$/;
const CERTIFICATE =
  /^(ERR_TLS_CERT_ALTNAME_INVALID|CERT_\w+|SELF_SIGNED_CERT_IN_CHAIN|DEPTH_ZERO_SELF_SIGNED_CERT|UNABLE_TO_\w+)$/;

/**
 * Why no later try will be better, as far as one can tell; null: the broker is out. What the library itself calls a failure
 * to authenticate may be a connection that was lost meanwhile: only the broker's own word counts.
 */
export function refusalOf(error: unknown): string | null {
  for (const { apiId = '', code = '' } of parts(error)) {
    if (LOGIN.test(apiId)) return `Kafka refuses the user or password of PIPE_URL (${apiId})`;
    if (apiId === 'UNSUPPORTED_SASL_MECHANISM') return `Kafka has no login of that kind: PIPE_URL …?sasl= (${apiId})`;
    if (apiId.endsWith('_AUTHORIZATION_FAILED')) return `Kafka does not allow it to the user of PIPE_URL (${apiId})`;
    if (CERTIFICATE.test(code)) return `the certificate of Kafka is not trusted (${code})`;
  }
  return null;
}

/** Whether what failed was the way to the broker, or the broker itself, and not what was asked of it. */
export function isOutage(error: unknown): boolean {
  for (const told of parts(error)) {
    if (told.apiId !== undefined) return (told as { canRetry?: boolean }).canRetry === true;
  }
  return true;
}
