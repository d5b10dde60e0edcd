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
  /** A channel of it. Its end is the end of the session. */
  channel(): Promise<Channel>;
  /** Goes on without it. It is closed when the broker gets to that. */
  release(channel: Channel): void;
  /** Ends the session: another is begun. */
  drop(error: unknown): void;
}

export interface LinkUser {
  readonly purpose: string;
  /** The broker is tried again even if it refuses us. Otherwise that is the end, unless it has taken us before. */
  readonly insists: boolean;
  begin(session: Session): Promise<void>;
  /** It is over, or was not begun to the end. */
  end(): void;
  /** `reason` is another now. */
  changed(): void;
}

/**
 * Keeps a connection for its user, and begins anew when something is wrong with it: lost, silent, a channel closed by the
 * broker, a consumer cancelled. What is at the broker is then declared and subscribed to again, so that one way leads out
 * of all these.
 *
 * The client's own reconnecting is not used: it tells of the first failure only, so that a password that is refused when
 * the broker comes back would look like a broker that is still out.
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

  /** Why there is no session, or null: there is one, or the first is being made. */
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

  /** In bounded time, even if the broker hangs. */
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
    // While we leave, channels close because we close them, one after the other.
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
      // An acknowledgement alone is a small packet that nothing follows.
      noDelay: true,
      ...(tls ? { tls } : {}),
    });
    // Heard to its end and after: an error that nobody hears would end the process.
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
      // A turn later: whoever knows why it was closed says it first.
      if (this.#channels.has(channel)) this.#timers.nextTurn(() => this.drop(new Error('a channel was closed')));
    });
    return channel;
  }

  release(channel: Channel): void {
    this.#channels.delete(channel);
    void channel.close();
  }

  /** In order: what was sent before has been read by the broker. */
  async leave(): Promise<void> {
    this.#leaving = true;
    await Promise.all([...this.#channels].map((channel) => channel.close()));
    await this.connection.close();
  }

  /** At once: what waits for an answer fails. */
  destroy(): void {
    this.#finish();
    this.connection.unsafeDestroy();
  }
}
