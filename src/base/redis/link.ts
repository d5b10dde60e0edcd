import { Cluster, type ClusterOptions, Redis, type RedisOptions } from 'ioredis';
import { messageOf, RetryableError, TerminalError } from '../errors.ts';
import type { KeepAlive } from '../keep-alive.ts';
import type { Runtime } from '../runtime.ts';
import { placeOf, type RedisTarget, redisClient } from './address.ts';
import type { Script } from './scripts.ts';
import { type Asker, answer, bulk, partsOf, SentScript } from './sent-script.ts';
import { SpinWait } from './spin-wait.ts';
import { UnderWay } from './under-way.ts';

/** Redis cannot be reached: the command may or may not have been executed. */
export class RedisUnavailableError extends RetryableError {
  constructor(message: string, cause?: unknown) {
    super('unavailable', message, { cause });
  }
}

/** Shown to buyers and in /readyz when a connection breaks. The client library's message goes to the log (`cause`). */
export const UNREACHED = 'Redis cannot be reached';

/** The cause, for a log. */
export function detailOf(error: unknown): string {
  const { cause } = (error ?? {}) as { cause?: unknown };
  return cause === undefined ? messageOf(error) : messageOf(cause);
}

export interface LinkOptions {
  /** How long one command may take. */
  readonly commandMs: number;
  /** In a cluster: subscribes to PUBLISH, which reaches every node, instead of SPUBLISH on the channel's own node. */
  readonly broadcast?: boolean;
  /** Stays awake for a moment while a script's answer is about to come, see spin-wait.ts. */
  readonly attentive?: boolean;
}

export interface LinkEvents {
  message(channel: string, message: string): void;
  /** Connected or subscribed again: messages sent meanwhile are lost, and Redis may have lost data. */
  interrupted(): void;
  /** The connection is lost, for this reason. Called once per outage. */
  unreachable?(reason: string): void;
}

/** Error replies of a server that will recover, or that is no longer the master. */
const PASSING = /^(READONLY|LOADING|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|UNBLOCKED|BUSY|NOREPLICAS|OOM|MISCONF)\b/;
/**
 * Settings of a caller's client that would break ours: limits that ioredis sets on each of its own commands, of which a
 * SentScript is none, and replies of another shape. `undefined` is what ioredis has if nothing is said.
 */
const NOT_TAKEN_OVER: Omit<RedisOptions, 'replyMapping'> = {
  commandTimeout: undefined,
  socketTimeout: undefined,
  blockingTimeout: undefined,
  stringNumbers: false,
  // With lazyConnect nothing would ever connect the client: what we send does not wait in its queue. (ioredis connects the nodes
  // of a cluster by it.)
  lazyConnect: undefined,
  readOnly: false,
  monitor: false,
  enableAutoPipelining: false,
  enableReadyCheck: true,
  himportFieldsets: undefined,
};
const RECONNECT_MS_MAX = 1000;
const PING_MS = 5000;

/**
 * One process's connections to one Redis (server, master behind sentinels, or cluster): one for commands, one that
 * listens, made when something is to be heard. Commands that were under way when a connection broke fail at once with
 * RedisUnavailableError and are not sent again here: only their caller knows whether that is safe.
 *
 * Idle, the connections do not keep the process alive.
 */
export class RedisLink {
  readonly cluster: boolean;
  readonly #runtime: Runtime;
  readonly #options: LinkOptions;
  readonly #events: LinkEvents;
  readonly #target: RedisTarget;
  readonly #client: Redis | Cluster;
  readonly #keepAlive: KeepAlive;
  readonly #underWay: UnderWay;
  readonly #spinWait: SpinWait | null;
  /** Channels to subscribe to again with each new connection. */
  readonly #channels = new Set<string>();
  readonly #listening = new Map<string, Promise<void>>();
  readonly #heard = new Set<string>();
  #subscriber: Redis | Cluster | null = null;
  #stopPings: (() => void) | null = null;
  #wasReady = false;
  #breaks = 0;
  #expected = 0;
  #corked: Corkable | null = null;
  #closed = false;
  /** Why a connection could not be made, until it was. */
  readonly #reasons = new WeakMap<Redis | Cluster, string>();
  #refusal: TerminalError | null = null;

  constructor(target: RedisTarget, options: LinkOptions, runtime: Runtime, keepAlive: KeepAlive, events: LinkEvents) {
    this.#runtime = runtime;
    this.#keepAlive = keepAlive;
    this.#options = options;
    this.#underWay = new UnderWay(runtime, options.commandMs, {
      late: () => new RedisUnavailableError(`no answer to EVALSHA within ${options.commandMs} ms`),
      dead: () => {
        if (this.#client instanceof Redis && !this.#closed) this.#client.disconnect(true);
      },
    });
    this.#spinWait = options.attentive ? new SpinWait(runtime.timers, () => this.#underWay.isEmpty) : null;
    this.#events = events;
    this.#target = target;
    this.#client = this.#connect('commands');
    this.cluster = this.#client instanceof Cluster;
    if (this.#client instanceof Cluster) this.#client.on('-node', () => this.#breaks++);
    this.#client.on('ready', () => {
      if (this.#wasReady) events.interrupted();
      this.#wasReady = true;
    });
    // Also called when this connection breaks: whoever waits for a message would not notice otherwise.
    this.#client.on('close', () => {
      if (this.#wasReady && !this.#closed) events.interrupted();
    });
  }

  /** Identifies the Redis, without secrets. */
  get place(): string {
    return placeOf(this.#client);
  }

  /** Why there is no connection for commands; null when there is one, or nothing is known. */
  get trouble(): string | null {
    return this.#reasons.get(this.#client) ?? null;
  }

  /** Announces a command in this turn: what several callers send then goes out in one write. */
  expect(): void {
    this.#expected++;
  }

  /** Ends the announcement. */
  expected(): void {
    if (--this.#expected === 0 && this.#corked) {
      this.#corked.uncork();
      this.#corked = null;
    }
  }

  /** No command is under way: the next one need not wait to share a write. */
  get idle(): boolean {
    return this.#underWay.isEmpty;
  }

  /**
   * How often a connection to a node of a cluster has ended. ioredis then resends what was under way there: a command during which
   * this has changed may have been executed twice.
   */
  get breaks(): number {
    return this.#breaks;
  }

  /** It was connected and is not now: a command would wait for a connection. */
  get lost(): boolean {
    return this.#wasReady && this.#client.status !== 'ready';
  }

  #connect(purpose: string): Redis | Cluster {
    const options: Omit<RedisOptions, 'replyMapping'> = {
      // A prefix of the caller's own client would change keys and not channels.
      keyPrefix: '',
      connectionName: `doorbuster-${purpose}`,
      // Only the caller of a script knows whether it may be sent again when its reply was lost.
      autoResendUnfulfilledCommands: false,
      maxRetriesPerRequest: 0,
      enableOfflineQueue: false,
      autoResubscribe: false,
      connectTimeout: Math.max(this.#options.commandMs, 1000),
      retryStrategy: (times) => Math.min(20 * 2 ** Math.min(times, 10), RECONNECT_MS_MAX),
      reconnectOnError: (error) => error.message.startsWith('READONLY'),
      ...NOT_TAKEN_OVER,
    };
    const cluster: ClusterOptions = {
      lazyConnect: false,
      enableAutoPipelining: false,
      scaleReads: 'master',
      enableOfflineQueue: false,
      shardedSubscribers: purpose === 'wake-ups' && this.#options.broadcast !== true,
      slotsRefreshTimeout: this.#options.commandMs,
      slotsRefreshInterval: 5000,
      clusterRetryStrategy: (times) => Math.min(20 * 2 ** Math.min(times, 10), RECONNECT_MS_MAX),
      retryDelayOnFailover: 50,
      retryDelayOnClusterDown: 50,
    };
    const client = redisClient(this.#target, options, cluster);
    // Every command that waits for a connection adds a listener for that time: more than ioredis' default limit is normal.
    client.setMaxListeners(0);
    // Without a listener ioredis writes errors to the console. Callers get theirs from their own command.
    client.on('error', (error: Error) => {
      const reason = reasonOf(error);
      this.#runtime.log.debug({ reason, purpose }, 'redis connection');
      if (commandOf(error) === 'select' && client instanceof Redis) this.#refuseDatabase(client, reason);
      const isNew = purpose === 'commands' && !this.#reasons.has(client);
      this.#reasons.set(client, reason);
      if (isNew) this.#events.unreachable?.(reason);
    });
    client.on('ready', () => this.#reasons.delete(client));
    if (client instanceof Cluster) {
      client.on('+node', (node: Redis) => letGo(node));
      for (const node of client.nodes()) letGo(node);
    } else {
      letGo(client);
    }
    return client;
  }

  /** ioredis would go on in database 0, and the caller would share it with others. Told before the client is ready. */
  #refuseDatabase(client: Redis, reason: string): void {
    if (!/DB index/i.test(reason)) {
      client.disconnect(true);
      return;
    }
    const message = `Redis has no database ${client.options.db} (${reason}): give one that it has, redis://host:port/0`;
    this.#refusal = new TerminalError('bad_config', message);
    client.disconnect();
  }

  /** Runs a script by its digest; a server that does not know it (restarted, flushed, failed over) gets the text. */
  script(script: Script, keys: readonly string[], args: readonly (string | number)[]): Promise<unknown> {
    const wire = [...keys, ...args].map((each) => bulk(String(each))).join('');
    return new Promise((answered, failed) => {
      const asker = { answered, failed };
      this.send(script, keys.length, keys.length + args.length, wire, this.#runtime.clock.monotonic(), asker);
    });
  }

  /** The same, for admissions and locks: `wire` are the keys and arguments, each as `bulk` writes it (sent-script.ts). */
  send(script: Script, keys: number, parts: number, wire: string, sentMs: number, asker: Asker): void {
    const client = this.#client;
    if (client instanceof Cluster || client.status !== 'ready') {
      this.#sendSlowly(script, keys, wire, asker);
      return;
    }
    const sent = new SentScript(this.#finish, asker, script, keys, parts, wire, sentMs);
    this.#keepAlive.hold();
    this.#underWay.add(sent);
    if (this.#expected > 1 && !this.#corked) {
      this.#corked = (client as unknown as { stream: Corkable }).stream;
      this.#corked.cork();
    }
    if (this.#spinWait) sent.spin = this.#spinWait.sent();
    void client.sendCommand(sent as unknown as Parameters<Redis['sendCommand']>[0]);
  }

  readonly #finish = (sent: SentScript, error: Error | null, reply: unknown): void => {
    this.#keepAlive.drop();
    this.#spinWait?.answered(sent.spin);
    if (error === null) answer(sent.asker, reply);
    else if (error.message.startsWith('NOSCRIPT')) this.#sendSlowly(sent.script, sent.keys, sent.wire, sent.asker);
    else sent.asker.failed(this.failure(error, 'EVALSHA'));
  };

  #sendSlowly(script: Script, keys: number, wire: string, asker: Asker): void {
    const parts = partsOf(wire);
    this.#scriptSlowly(script, parts.slice(0, keys), parts.slice(keys)).then(
      (reply) => answer(asker, reply),
      (error: unknown) => asker.failed(error),
    );
  }

  async #scriptSlowly(script: Script, keys: readonly string[], args: readonly string[]): Promise<unknown> {
    try {
      return await this.call('EVALSHA', [script.sha, keys.length, ...keys, ...args]);
    } catch (error) {
      if (!messageOf(error).startsWith('NOSCRIPT')) throw error;
      return await this.call('EVAL', [script.lua, keys.length, ...keys, ...args]);
    }
  }

  async call(command: string, args: readonly (string | number)[]): Promise<unknown> {
    this.#keepAlive.hold();
    try {
      if (this.#client.status !== 'ready') await this.#ready(this.#client);
      return await this.#within(this.#client.call(command, ...args) as Promise<unknown>, command);
    } catch (error) {
      throw this.failure(error, command);
    } finally {
      this.#keepAlive.drop();
    }
  }

  /**
   * Runs several commands back to back on a connection of their own, so that a blocking one (WAIT) delays nobody else.
   * Names are in lower case: they are methods of a pipeline.
   */
  async inARow(calls: readonly (readonly [string, ...(string | number)[]])[], limitMs: number): Promise<unknown[]> {
    this.#keepAlive.hold();
    const client = this.#connect('in-a-row');
    try {
      await this.#ready(client);
      const pipeline = client.pipeline(calls.map(([command, ...args]) => [command, ...args]));
      const replies = (await this.#within(pipeline.exec(), calls[0]![0], limitMs)) ?? [];
      return replies.map(([error, reply]) => {
        if (error) throw error;
        return reply;
      });
    } catch (error) {
      throw this.failure(error, calls[0]![0]);
    } finally {
      client.disconnect();
      this.#keepAlive.drop();
    }
  }

  /** Calls `visit` with every node that holds keys. */
  async eachNode(visit: (node: Redis) => Promise<void>): Promise<void> {
    this.#keepAlive.hold();
    try {
      if (this.#client.status !== 'ready') await this.#ready(this.#client);
      for (const node of this.#client instanceof Cluster ? this.#client.nodes('master') : [this.#client])
        await visit(node);
    } catch (error) {
      throw this.failure(error, 'SCAN');
    } finally {
      this.#keepAlive.drop();
    }
  }

  /** Whether messages of this channel reach us, as far as we know. */
  hears(channel: string): boolean {
    return this.#heard.has(channel);
  }

  /** Resolves when messages of this channel reach us. */
  listen(channel: string): Promise<void> {
    if (this.#heard.has(channel)) return Promise.resolve();
    let listening = this.#listening.get(channel);
    if (!listening) {
      listening = this.#listen(channel).finally(() => this.#listening.delete(channel));
      this.#listening.set(channel, listening);
    }
    return listening;
  }

  async #listen(channel: string): Promise<void> {
    this.#keepAlive.hold();
    try {
      this.#channels.add(channel);
      this.#subscriber ??= this.#openSubscriber();
      const subscriber = this.#subscriber;
      if (subscriber.status !== 'ready') await this.#ready(subscriber);
      await this.#within(this.#subscribe(subscriber, channel), 'SUBSCRIBE');
      this.#heard.add(channel);
    } catch (error) {
      throw this.failure(error, 'SUBSCRIBE');
    } finally {
      this.#keepAlive.drop();
    }
  }

  get #sharded(): boolean {
    return this.cluster && this.#options.broadcast !== true;
  }

  #subscribe(subscriber: Redis | Cluster, channel: string): Promise<unknown> {
    return this.#sharded ? subscriber.ssubscribe(channel) : subscriber.subscribe(channel);
  }

  #openSubscriber(): Redis | Cluster {
    const subscriber = this.#connect('wake-ups');
    subscriber.on(this.#sharded ? 'smessage' : 'message', (channel: string, message: string) => {
      this.#events.message(channel, message);
    });
    let wasReady = false;
    subscriber.on('close', () => this.#heard.clear());
    subscriber.on('ready', () => {
      if (wasReady) void this.#resubscribe(subscriber);
      wasReady = true;
    });
    // A node of a cluster that was lost and found again: ioredis subscribes anew by itself, we look at what was missed.
    if (subscriber instanceof Cluster) subscriber.on('+node', () => wasReady && this.#events.interrupted());
    this.#stopPings = this.#runtime.timers.every(PING_MS, () => void this.#ping(subscriber));
    return subscriber;
  }

  async #resubscribe(subscriber: Redis | Cluster): Promise<void> {
    const channels = [...this.#channels];
    try {
      await this.#within(Promise.all(channels.map((each) => this.#subscribe(subscriber, each))), 'SUBSCRIBE');
      for (const channel of channels) this.#heard.add(channel);
    } catch (error) {
      if (this.#closed) return;
      this.#runtime.log.debug({ reason: messageOf(error) }, 'could not subscribe again');
      if (subscriber instanceof Redis) subscriber.disconnect(true);
      return;
    }
    this.#events.interrupted();
  }

  /** A connection that only listens would not notice that its peer is gone. */
  async #ping(subscriber: Redis | Cluster): Promise<void> {
    if (!(subscriber instanceof Redis) || subscriber.status !== 'ready') return;
    try {
      await this.#within(subscriber.ping(), 'PING');
    } catch {
      if (!this.#closed && subscriber.status === 'ready') subscriber.disconnect(true);
    }
  }

  #ready(client: Redis | Cluster): Promise<void> {
    return new Promise((resolve, reject) => {
      const limitMs = this.#options.commandMs;
      const done = (settle: () => void): void => {
        stop();
        client.off('ready', ready);
        client.off('end', ended);
        settle();
      };
      const ready = (): void => done(resolve);
      const out = (what: string): void => {
        const reason = this.#reasons.get(client);
        const error =
          reason === undefined
            ? new RedisUnavailableError(what)
            : new RedisUnavailableError(`${what}: ${reason}`, new Error(reason));
        done(() => reject(this.#refusal ?? error));
      };
      const ended = (): void => out(`the connection to ${this.place} is closed`);
      const stop = this.#runtime.timers.after(limitMs, () =>
        out(`no connection to ${this.place} within ${limitMs} ms`),
      );
      client.on('ready', ready);
      client.on('end', ended);
      if (client.status === 'ready') ready();
      else if (client.status === 'end') ended();
    });
  }

  #within<T>(promise: Promise<T>, command: string, limitMs = this.#options.commandMs): Promise<T> {
    return new Promise((resolve, reject) => {
      const stop = this.#runtime.timers.after(limitMs, () => {
        reject(new RedisUnavailableError(`no answer to ${command} within ${limitMs} ms`));
      });
      promise.then(
        (value) => {
          stop();
          resolve(value);
        },
        (error: unknown) => {
          stop();
          reject(error);
        },
      );
    });
  }

  /** The error that the caller of a command gets: a RedisUnavailableError if the failure is temporary. */
  failure(error: unknown, command: string): unknown {
    if (error instanceof RedisUnavailableError || error instanceof TerminalError) return error;
    // A command that was under way when a new connection was refused fails with that refusal, which contains the password.
    if (CREDENTIALS.has(commandOf(error))) return new RedisUnavailableError(reasonOf(error));
    // Our own bug is not an outage and must not be retried.
    if (error instanceof TypeError || error instanceof RangeError) return error;
    const message = messageOf(error);
    const name = error instanceof Error ? error.name : '';
    // Anything that is not a reply of the server is a failure of the connection.
    if (name !== 'ReplyError') return new RedisUnavailableError(UNREACHED, error);
    return PASSING.test(message) ? new RedisUnavailableError(`${command}: ${message}`, error) : error;
  }

  /** The server is no longer the master. */
  reconnect(): void {
    if (this.#client instanceof Redis && !this.#closed && this.#client.status === 'ready')
      this.#client.disconnect(true);
  }

  get closed(): boolean {
    return this.#closed;
  }

  close(): void {
    this.#closed = true;
    this.#stopPings?.();
    this.#subscriber?.disconnect();
    this.#client.disconnect();
    this.#underWay.close();
  }
}

/** The commands with which ioredis signs in. */
const CREDENTIALS: ReadonlySet<string> = new Set(['auth', 'hello']);

/** The command that the server refused with this error; '' if the error is not a reply of the server. */
function commandOf(error: unknown): string {
  const { command } = error as { command?: { name?: unknown } };
  return typeof command?.name === 'string' ? command.name.toLowerCase() : '';
}

/** A connection error as text. Never the error itself: that of a refused AUTH contains the password. */
function reasonOf(error: unknown): string {
  const { lastNodeError, errors, code } = error as { lastNodeError?: unknown; errors?: unknown[]; code?: unknown };
  if (lastNodeError instanceof Error) return `${messageOf(error)} ${reasonOf(lastNodeError)}`;
  // A host with several addresses, none of which answered: the aggregate error has no text.
  if (errors?.[0] instanceof Error) return messageOf(errors[0]);
  return messageOf(error) || String(code ?? 'no reason given');
}

interface Corkable {
  cork(): void;
  uncork(): void;
}

/** An idle connection must not keep the process alive. */
function letGo(client: Redis): void {
  const unref = (): void => {
    (client as unknown as { stream?: { unref?(): void } }).stream?.unref?.();
  };
  client.on('connect', unref);
  unref();
}
