import { type Channel, Connection } from 'rabbitmq-client';
import { backOffMs } from '../../base/back-off.ts';
import { DoorbusterError, TerminalError, unavailable } from '../../base/errors.ts';
import type { Runtime } from '../../base/runtime.ts';
import { pause, within } from '../../base/timers.ts';
import type { RabbitAddress } from './address.ts';
import { NoAnswerError, refusalOf, wordsOf } from './answers.ts';

const AGAIN_MS_MIN = 25;
const AGAIN_MS_MAX = 2000;
const CLOSE_MS_MAX = 2000;

/** Waits for one answer of the broker, as long as one may take. */
export type Ask = <T>(answer: Promise<T>) => Promise<T>;

/** One connection, while it lasts. */
export interface Session {
  readonly connection: Connection;
  readonly ask: Ask;
  /** Opens a channel. When it ends, the session ends. */
  channel(): Promise<Channel>;
  /** Goes on without this channel, and closes it without waiting for the broker. */
  release(channel: Channel): void;
  /** Ends the session; a new one begins. */
  drop(error: unknown): void;
}

export interface LinkUser {
  readonly purpose: string;
  /** Retries even if the broker refuses us. Otherwise a refusal is final, unless there was a session before. */
  readonly insists: boolean;
  begin(session: Session): Promise<void>;
  /** The session is over, or failed to begin. */
  end(): void;
  /** `reason` has changed. */
  changed(): void;
}

/**
 * Keeps a connection alive, and begins a new session when anything is wrong: the connection is lost or silent, the broker closed a
 * channel or cancelled a consumer. A new session declares and subscribes everything again, so one path recovers from all of these.
 *
 * The client's own reconnecting is not used: it reports the first failure only, so a password that is refused when the broker is
 * back would look like a broker that is still out.
 */
export class Link {
  readonly #address: RabbitAddress;
  readonly #name: string;
  readonly #answerMs: number;
  readonly #runtime: Runtime;
  readonly #user: LinkUser;
  readonly #closing = new AbortController();
  #run: Promise<void> | null = null;
  #attempts = 0;
  #session: OpenSession | null = null;
  #wasUp = false;
  #reason: string | null = null;

  constructor(address: RabbitAddress, prefix: string, answerMs: number, runtime: Runtime, user: LinkUser) {
    this.#address = address;
    this.#name = `${prefix} ${user.purpose} ${process.pid}`;
    this.#answerMs = answerMs;
    this.#runtime = runtime;
    this.#user = user;
  }

  /** Why there is no session; null while there is one, or while the first is being made. */
  get reason(): string | null {
    return this.#reason;
  }

  /** There is a session, or there was one. */
  get wasUp(): boolean {
    return this.#wasUp;
  }

  /** Resolves with the first session. */
  open(): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#run = this.#keep(resolve, reject);
    });
  }

  /** Closes in bounded time, even if the broker hangs. */
  async close(): Promise<void> {
    this.#closing.abort();
    const session = this.#session;
    if (session) {
      await within(this.#runtime.timers, session.leave(), Math.min(this.#answerMs, CLOSE_MS_MAX));
      session.destroy();
    }
    await this.#run;
  }

  async #keep(opened: () => void, failed: (error: unknown) => void): Promise<void> {
    const { clock, timers, random } = this.#runtime;
    const { signal } = this.#closing;
    let failures = 0;
    for (;;) {
      let sinceMs = Infinity;
      const error = await this.#live(() => {
        sinceMs = clock.monotonic();
        this.#wasUp = true;
        this.#reason = null;
        opened();
      });
      if (signal.aborted) break;
      this.#reason = error instanceof DoorbusterError ? error.message : `RabbitMQ is out: ${wordsOf(error)}`;
      if (error instanceof TerminalError && !this.#wasUp && !this.#user.insists) {
        failed(error);
        return;
      }
      this.#user.changed();
      // A connection that ended at once is no reason to hurry.
      if (clock.monotonic() - sinceMs > AGAIN_MS_MAX) failures = 0;
      const againMs = backOffMs(failures++, AGAIN_MS_MIN, AGAIN_MS_MAX);
      await pause(timers, againMs * (0.5 + random.fraction() / 2), signal);
      if (signal.aborted) break;
    }
    this.#reason = 'RabbitMQ is closed';
    failed(unavailable(this.#reason));
  }

  /** One session from its beginning to its end. Resolves with why it is over. */
  async #live(began: () => void): Promise<unknown> {
    const { hosts } = this.#address;
    const session = new OpenSession(this.#address, hosts[this.#attempts++ % hosts.length]!, this.#name, {
      answerMs: this.#answerMs,
      timers: this.#runtime.timers,
    });
    this.#session = session;
    try {
      await session.connected();
      await this.#user.begin(session);
      began();
      this.#user.changed();
      return await session.over;
    } catch (error) {
      return error;
    } finally {
      this.#session = null;
      session.destroy();
      this.#user.end();
    }
  }
}

class OpenSession implements Session {
  readonly connection: Connection;
  /** Resolves with why. */
  readonly over: Promise<unknown>;
  readonly drop: (error: unknown) => void;
  readonly #channels = new Set<Channel>();
  readonly #answerMs: number;
  readonly #timers: Runtime['timers'];
  readonly #finish: () => void;
  #leaving = false;

  constructor(
    { tls, username, password, vhost, heartbeat }: RabbitAddress,
    { host, port }: RabbitAddress['hosts'][number],
    connectionName: string,
    { answerMs, timers }: { answerMs: number; timers: Runtime['timers'] },
  ) {
    this.#answerMs = answerMs;
    this.#timers = timers;
    const over = Promise.withResolvers<unknown>();
    this.over = over.promise;
    // While we close, channels end because we close them one after the other.
    this.drop = (error) => {
      if (!this.#leaving) over.resolve(error);
    };
    this.#finish = () => over.resolve(new Error('closed'));
    this.connection = new Connection({
      hostname: host,
      port,
      username,
      password,
      vhost,
      heartbeat,
      connectionName,
      connectionTimeout: answerMs,
      // A lone acknowledgement is a small packet, which Nagle's algorithm would delay.
      noDelay: true,
      ...(tls ? { tls } : {}),
    });
    // The listener stays after the end: an error without a listener would end the process.
    this.connection.on('error', this.drop);
  }

  async connected(): Promise<void> {
    const connected = new Promise<null>((resolve) => {
      this.connection.once('connection', () => resolve(null));
    });
    const failure = await Promise.race([connected, this.over]);
    if (failure !== null) throw refusalOf(failure) ?? failure;
  }

  readonly ask: Ask = async (answer) => {
    const answered = await within(
      this.#timers,
      answer.then((value) => ({ value })),
      this.#answerMs,
    );
    if (answered === null) throw new NoAnswerError(this.#answerMs);
    return answered.value;
  };

  async channel(): Promise<Channel> {
    const channel = await this.ask(this.connection.acquire({ emitErrorsFromChannel: true }));
    channel.on('error', this.drop);
    this.#channels.add(channel);
    channel.once('close', () => {
      // One turn later, so that an error with the actual reason comes first.
      if (this.#channels.has(channel)) this.#timers.nextTurn(() => this.drop(new Error('a channel was closed')));
    });
    return channel;
  }

  release(channel: Channel): void {
    this.#channels.delete(channel);
    void channel.close();
  }

  /** Closes in order: the broker has read what was sent before. */
  async leave(): Promise<void> {
    this.#leaving = true;
    await Promise.all([...this.#channels].map((channel) => channel.close()));
    await this.connection.close();
  }

  /** Closes at once: pending requests fail. */
  destroy(): void {
    this.#finish();
    this.connection.unsafeDestroy();
  }
}
