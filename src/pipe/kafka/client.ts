import { Admin, type Base, type BaseOptions, type Broker, type Connection, Producer } from '@platformatic/kafka';
import { messageOf, type RetryableError, unavailable } from '../../base/errors.ts';
import { type Timers, within } from '../../base/timers.ts';
import type { KafkaAddress } from './address.ts';

/** Time limits. */
export interface Spans {
  readonly connectMs: number;
  readonly answerMs: number;
}

/**
 * Makes clients of the library. They do not retry by themselves: failures are handled in one place, and a client that failed is
 * thrown away with all its state.
 */
export class Clients {
  readonly #address: KafkaAddress;
  readonly #clientId: string;
  /** The broker that a client asks first; the others follow only if it cannot be connected to. */
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

  /** Confirmed by all in-sync replicas; idempotent, so that a record that the library sends twice is written once. */
  producer(spans: Spans): Producer {
    // The library takes fewer than two tries for unlimited.
    return this.#made(new Producer({ ...this.#options(spans), idempotent: true, retries: 4, retryDelay: 100 }));
  }

  /** The client failed, perhaps because a broker accepts connections and does not answer: the next one asks another broker first. */
  fail(client: Base): void {
    const [first, ...others] = this.#brokers;
    if (this.#asked.get(client) === first) this.#brokers = [...others, first!];
    drop(client);
  }

  #made<Client extends Base>(client: Client): Client {
    this.#asked.set(client, this.#brokers[0]!);
    // A late error (refused, then reset) would have no listener and end the process.
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

/** Closes at once; pending requests are rejected. */
export function drop(client: Base): void {
  const connections = [...client.connections].map(([, connection]) => connection);
  // A normal close waits until everything is written, and a broker that hangs does not read.
  client.close().catch(() => {});
  for (const { socket } of connections) socket?.destroy();
}

/** A connection to this broker of the cluster. */
export async function connectionTo(client: Base, node: number): Promise<Connection> {
  const connection = (await client.connectToBrokers([node])).get(node);
  if (connection === undefined) throw unavailable(`the cluster has no broker ${node} now`);
  return connection;
}

/** Applies in addition to the library's own limits, in case the library loses an answer. */
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

// Errors of the library

interface Told {
  readonly message: string;
  readonly code?: string;
  /** The protocol's name of the broker's error. */
  readonly apiId?: string;
  readonly serverErrorMessage?: string | null;
  readonly errors?: readonly unknown[];
  readonly cause?: unknown;
}

/** The error and all its causes, the innermost first. */
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

/** The message in one line, without the requests and answers that the error contains. */
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
 * Why a later try will not succeed either; null: the broker is out. What the library calls an authentication failure may be a
 * connection that was lost meanwhile: only the broker's own error counts.
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

/** Whether the connection or the broker failed, rather than the request. */
export function isOutage(error: unknown): boolean {
  for (const told of parts(error)) {
    if (told.apiId !== undefined) return (told as { canRetry?: boolean }).canRetry === true;
  }
  return true;
}
