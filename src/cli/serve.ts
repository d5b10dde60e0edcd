import type { Socket } from 'node:net';
import { setFlagsFromString } from 'node:v8';
import type { Config } from '../base/config.ts';
import { messageInFull, messageOf, RetryableError, TerminalError, unavailable } from '../base/errors.ts';
import { announce, createLog, tellWaiting } from '../base/log.ts';
import { isLoopback } from '../base/loopback.ts';
import { RedisUnavailableError } from '../base/redis/link.ts';
import { type Runtime, systemRuntime } from '../base/runtime.ts';
import { sleep } from '../base/timers.ts';
import { type Deployment, deploymentOf, type OpenOptions, openShop } from '../engine/open.ts';
import type { Readiness, Shop } from '../engine/shop.ts';
import { HTTP_DEFAULTS, type ShopSource } from '../http/context.ts';
import { createServer } from '../http/server.ts';
import { type Command, configOf, parseFlags, settingFlags, settingHelp } from './command.ts';
import { demoKeys, demoSale, demoTalk, demoWords, mustBeHere } from './demo.ts';
import { whenNpmEnds } from './npm.ts';
import { mustBeStrong } from './strong.ts';

const SETTINGS = [
  'port',
  'host',
  'data',
  'redisUrl',
  'databaseUrl',
  'pipeUrl',
  'redisPrefix',
  'answerWithinMs',
  'pipeMax',
  'rebuildDrainMs',
  'writerLock',
  'likes',
  'adminKeys',
  'authSecrets',
  'authIssuer',
  'authAudience',
  'authRequireExp',
  'accounts',
  'demoHosts',
  'paymentsSandbox',
  'paymentSecrets',
  'webhooksPrivate',
  'rateLimitBuyer',
  'rateLimitBuyerWrites',
  'rateLimitBuyerReads',
  'ordersPerDay',
  'postsPerDay',
  'writingCharsPerDay',
  'rateLimitAddress',
  'trustProxy',
  'corsOrigins',
  'sseMax',
  'ssePerAddressMax',
  'connectionsMax',
  'connectionsPerAddressMax',
  'requestWithinMs',
  'closeAfterMs',
  'metricsPublic',
  'inFlightMax',
  'eventLoopDelayMsMax',
  'logLevel',
] as const;

/**
 * V8 may decide during the first requests that an object literal of the hot path lives long, and from then on allocates it in the
 * old generation. There it keeps its whole request alive until the next full collection: in half of all starts a request cost a
 * fifth more (docs/internals/measurements.md). V8 reads the flag when it optimizes a function, so it has to be set before.
 */
function keepRequestsYoung(): void {
  setFlagsFromString('--no-allocation-site-pretenuring');
}

/** The process must end within 10 s of closing the port; shortly before that, whatever is unfinished is cut off. */
const DRAIN_MS_MAX = 9_500;
/** How long a client may take to finish sending its request. */
const HALF_SENT_MS_MAX = 5_000;
const IDLE_LOOK_MS = 100;
const OPEN_RETRY_MS = 1_000;

export const serve: Command = {
  help: `Usage: doorbuster serve [--demo] [options]

Serves a shop over HTTP on --host and --port. Without REDIS_URL and DATABASE_URL the shop is embedded: one process, with
SQLite in the data folder. With both, this is one of many processes that share Redis and MySQL, MariaDB or PostgreSQL. With
DATABASE_URL alone, the shop is one process on that database.
Needs DOORBUSTER_ADMIN_KEY and DOORBUSTER_AUTH_SECRET. With --demo it generates them, stores them in the data folder, prints
the admin key, listens on loopback only, and opens a sale with stock at every start.

  --demo                     try it out: random keys and an open sale
  --no-worker                only accept orders; \`doorbuster worker\` processes write them to the ledger (with Redis)
  --migrate                  bring the schema of a shared database up to date first
${settingHelp(SETTINGS)}`,
  async run(args) {
    keepRequestsYoung();
    const flags = parseFlags(args, {
      ...settingFlags(SETTINGS),
      demo: { type: 'boolean' },
      'no-worker': { type: 'boolean' },
      migrate: { type: 'boolean' },
    });
    const demo = flags['demo'] === true;
    const config = configOf(flags);
    const runtime = systemRuntime(
      createLog(
        demo && process.env['LOG_LEVEL'] === undefined && flags['log-level'] === undefined ? 'warn' : config.logLevel,
        { aside: demo },
      ),
    );
    if (demo && !isLoopback(config.host)) {
      throw new TerminalError(
        'bad_config',
        `--demo listens on loopback only, not on ${config.host}, because it gives tokens to anybody`,
      );
    }
    if (demo) mustBeHere(config);
    const keys = demo ? demoKeys(config, runtime) : { ...neededKeys(config), demo: null, printed: null };
    mustBeStrong(config);
    // At a file-size limit the default action of this signal kills the process. Without it write() fails, and the ledger copes.
    process.on('SIGXFSZ', () => {});

    if (flags['no-worker'] === true && deploymentOf(config) !== 'distributed') {
      throw new TerminalError('bad_config', '--no-worker needs REDIS_URL: without Redis there are no worker processes');
    }
    const options = { worker: flags['no-worker'] !== true, migrate: flags['migrate'] === true || demo };
    // In a demo the receiver of a webhook runs on this machine, and nobody else can reach the demo.
    const webhooksPrivate = config.webhooksPrivate || demo;
    const settings = { ...config, paymentsSandbox: config.paymentsSandbox || demo, webhooksPrivate };
    const opening = new OpeningShop(settings, options, runtime);
    const first = await opening.tryOpen();
    const app = await createServer({
      shop: opening,
      http: {
        ...HTTP_DEFAULTS,
        adminKeys: keys.adminKeys,
        authSecrets: keys.authSecrets,
        demo: keys.demo,
        accounts: config.accounts || demo,
        issuer: config.authIssuer,
        audience: config.authAudience,
        requireExp: config.authRequireExp === 'auto' ? !isLoopback(config.host) : config.authRequireExp === 'on',
        rateLimitBuyer: config.rateLimitBuyer,
        rateLimitBuyerWrites: config.rateLimitBuyerWrites,
        rateLimitBuyerReads: config.rateLimitBuyerReads,
        ordersPerDay: config.ordersPerDay,
        postsPerDay: config.postsPerDay,
        writingCharsPerDay: config.writingCharsPerDay,
        rateLimitAddress: config.rateLimitAddress,
        corsOrigins: config.corsOrigins,
        sseMax: config.sseMax,
        ssePerAddressMax: config.ssePerAddressMax,
        connectionsMax: config.connectionsMax,
        connectionsPerAddressMax: config.connectionsPerAddressMax,
        requestWithinMs: config.requestWithinMs,
        metricsPublic: config.metricsPublic || demo,
        inFlightMax: config.inFlightMax,
        eventLoopDelayMsMax: config.eventLoopDelayMsMax,
        paymentSecrets: config.paymentSecrets,
        providerSecrets: config.providerSecrets,
      },
      runtime,
      trustProxy: config.trustProxy,
    });
    const sockets = new Set<Socket>();
    app.server.on('connection', (socket: Socket) => {
      sockets.add(socket);
      socket.once('close', () => sockets.delete(socket));
    });
    const closed = Promise.withResolvers<number>();
    const stop = (signal: string): void => void drain(signal);
    let leaving = false;
    /** The first SIGTERM gives a load balancer time to notice. A second one, Ctrl-C and the end of npm stop at once. */
    const leave = (): void => {
      if (leaving || config.closeAfterMs === 0) {
        stop('SIGTERM');
        return;
      }
      leaving = true;
      runtime.log.info(
        { closeAfterMs: config.closeAfterMs },
        'SIGTERM: /readyz answers 503 from now on; requests are still served until the port closes',
      );
      opening.leave();
      // Otherwise the close of a kept-alive connection could hit a client's next request.
      app.server.prependListener('request', (_request, response) => {
        response.shouldKeepAlive = false;
      });
      runtime.timers.after(config.closeAfterMs, () => stop('SIGTERM'));
    };
    let draining = false;
    const drain = async (signal: string): Promise<void> => {
      if (draining) return;
      draining = true;
      runtime.log.info({ signal }, 'closing: refusing new orders, finishing requests in flight');
      runtime.timers.after(DRAIN_MS_MAX, () => {
        runtime.log.error('some requests or orders did not finish in time; exiting with code 1');
        process.exit(1);
      });
      opening.stop();
      // `app.close` would wait for clients that keep an idle connection, and for those that never sent anything.
      runtime.timers.every(IDLE_LOOK_MS, () => {
        app.server.closeIdleConnections();
        for (const socket of sockets) if (socket.bytesRead === 0) socket.destroy();
      });
      runtime.timers.after(HALF_SENT_MS_MAX, () => app.server.closeAllConnections());
      // First stop accepting and finish the requests in flight, then close the pipe, the writer and the ledger.
      await app.close();
      await opening.close();
      closed.resolve(0);
    };
    process.on('SIGTERM', leave);
    process.on('SIGINT', stop);
    whenNpmEnds(runtime.timers, () => stop('npm has ended'));

    try {
      await app.listen({ port: config.port, host: config.host });
    } catch (error) {
      await app.close();
      await opening.close();
      const code = (error as { code?: string }).code;
      if (code === 'EADDRINUSE') {
        throw new TerminalError(
          'bad_config',
          `port ${config.port} on ${config.host} is in use; choose another with --port`,
        );
      }
      if (code === 'EADDRNOTAVAIL' || code === 'ENOTFOUND') {
        throw new TerminalError('bad_config', `HOST ${config.host} is not an address of this machine`);
      }
      if (code === 'EACCES') throw new TerminalError('bad_config', `this user may not listen on PORT ${config.port}`);
      throw error;
    }
    const { port } = app.server.address() as { port: number };
    const url = `http://${config.host.includes(':') ? `[${config.host}]` : config.host}:${port}`;
    if (first !== null) {
      console.error(`doorbuster serve: ${first}; answering 503 and retrying every second`);
      // A demo logs to stderr anyway.
      if (!demo) tellWaiting(runtime.log, first);
      void opening.openLater();
    }
    if (demo) {
      const shop = await Promise.race([opening.opened, closed.promise]);
      if (typeof shop !== 'number') {
        const saleId = await demoSale(shop);
        console.log(demoWords(url, keys, saleId));
        // Nobody waits for these.
        await demoTalk(shop).catch((error: unknown) => {
          runtime.log.warn({ reason: messageOf(error) }, 'the demo has no posts');
        });
      }
    } else {
      announce(runtime.log, { url }, `doorbuster: listening on ${url}`);
    }
    return closed.promise;
  },
};

function neededKeys({ adminKeys, authSecrets }: Config) {
  if (adminKeys === null)
    throw new TerminalError('bad_config', 'DOORBUSTER_ADMIN_KEY is not set (to try it out, use --demo)');
  if (authSecrets === null)
    throw new TerminalError('bad_config', 'DOORBUSTER_AUTH_SECRET is not set (to try it out, use --demo)');
  return { adminKeys, authSecrets };
}

/**
 * A shop that may not be open yet. A read-only data folder, a full disk or a server that is down is not a configuration
 * error: the server starts, answers 503 with the reason, and retries. Anything that retrying cannot fix (another server in the
 * data folder, a damaged file, a newer schema) ends the start.
 */
class OpeningShop implements ShopSource {
  readonly #deployment: Deployment;
  readonly #options: OpenOptions;
  readonly #runtime: Runtime;
  readonly #opened = Promise.withResolvers<Shop>();
  #shop: Shop | null = null;
  #reason = 'the ledger is being opened';
  #redisOut = false;
  #leaving = false;
  #stopped = false;

  constructor(deployment: Deployment, options: OpenOptions, runtime: Runtime) {
    this.#deployment = deployment;
    this.#options = options;
    this.#runtime = runtime;
  }

  get opened(): Promise<Shop> {
    return this.#opened.promise;
  }

  /** Null if the shop is open now, otherwise why not. */
  async tryOpen(): Promise<string | null> {
    try {
      this.#shop = await openShop(this.#deployment, this.#options, this.#runtime);
      this.#opened.resolve(this.#shop);
      return null;
    } catch (error) {
      if (!(error instanceof RetryableError)) throw error;
      this.#reason = messageOf(error);
      this.#redisOut = error instanceof RedisUnavailableError;
      return messageInFull(error);
    }
  }

  async openLater(): Promise<void> {
    while (!this.#stopped) {
      await sleep(this.#runtime.timers, OPEN_RETRY_MS);
      if (this.#stopped) return;
      try {
        if ((await this.tryOpen()) === null) {
          this.#runtime.log.info('the shop is open now');
          return;
        }
      } catch (error) {
        // An error that retrying usually does not fix, for example another server that took the data folder first.
        this.#reason = messageOf(error);
        this.#runtime.log.error({ err: error }, 'the shop cannot be opened; retrying');
      }
    }
  }

  get(): Shop {
    if (this.#shop === null) throw unavailable(this.#reason);
    return this.#shop;
  }

  readiness(): Readiness {
    if (this.#shop !== null) {
      const readiness = this.#shop.readiness();
      if (!this.#leaving) return readiness;
      return { status: 'unavailable', parts: { ...readiness.parts, pipe: 'the shop is closing' } };
    }
    const reason = this.#reason;
    const parts = this.#redisOut
      ? { gate: reason, pipe: reason, ledger: 'waiting for Redis' }
      : { gate: 'waiting for the ledger', pipe: 'ok', ledger: reason };
    return { status: 'unavailable', parts };
  }

  closing(): boolean {
    return this.#stopped;
  }

  blockedMs(): number {
    return this.#shop?.blockedMs ?? 0;
  }

  /** Goes on serving, but /readyz tells load balancers to send nothing more. */
  leave(): void {
    this.#leaving = true;
  }

  stop(): void {
    this.#stopped = true;
    this.#shop?.stop();
  }

  async close(): Promise<void> {
    await this.#shop?.close();
  }
}
