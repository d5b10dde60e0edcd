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
import { demoKeys, demoSale, demoWords, mustBeHere } from './demo.ts';
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
  'adminKeys',
  'authSecrets',
  'authIssuer',
  'authAudience',
  'authRequireExp',
  'demoHosts',
  'paymentsSandbox',
  'paymentSecrets',
  'webhooksPrivate',
  'rateLimitBuyer',
  'rateLimitBuyerWrites',
  'rateLimitBuyerReads',
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

/** From the close of the port it must end within 10 s; what is not finished a little before is cut off. */
const DRAIN_MS_MAX = 9_500;
/** A client that never ends its request is waited for this long. */
const HALF_SENT_MS_MAX = 5_000;
const IDLE_LOOK_MS = 100;
const OPEN_RETRY_MS = 1_000;

export const serve: Command = {
  help: `Usage: doorbuster serve [--demo] [options]

Runs a shop: HTTP on --host and --port. With neither REDIS_URL nor DATABASE_URL it is embedded: one process, SQLite in the
data folder. With both it is one process of a shop of many, on Redis and MySQL, MariaDB or PostgreSQL. DATABASE_URL alone:
one process on that database.
Needs DOORBUSTER_ADMIN_KEY and DOORBUSTER_AUTH_SECRET; --demo makes them up, keeps them in the data folder, prints
them, binds to loopback only and has an open sale with stock at every start.

  --demo                     for trying it out
  --no-worker                take orders only; \`doorbuster worker\` processes carry them to the ledger (with Redis)
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
        `--demo binds to loopback only, not to ${config.host}: its keys are printed`,
      );
    }
    if (demo) mustBeHere(config);
    const keys = demo ? demoKeys(config, runtime) : { ...neededKeys(config), demo: null, printed: null };
    mustBeStrong(config);
    // A file-size limit sends this signal, and its default is to die; as an error of write() the ledger can deal with it.
    process.on('SIGXFSZ', () => {});

    if (flags['no-worker'] === true && deploymentOf(config) !== 'distributed') {
      throw new TerminalError('bad_config', '--no-worker needs REDIS_URL: a process alone has nobody to do its work');
    }
    const options = { worker: flags['no-worker'] !== true, migrate: flags['migrate'] === true || demo };
    // Who tries it out has the other end of a webhook on this machine, where the demo is and nobody else can reach it.
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
        issuer: config.authIssuer,
        audience: config.authAudience,
        requireExp: config.authRequireExp === 'auto' ? !isLoopback(config.host) : config.authRequireExp === 'on',
        rateLimitBuyer: config.rateLimitBuyer,
        rateLimitBuyerWrites: config.rateLimitBuyerWrites,
        rateLimitBuyerReads: config.rateLimitBuyerReads,
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
    /** Only SIGTERM leaves a balancer time: whoever sends it twice, presses Ctrl-C or has ended npm wants the end. */
    const leave = (): void => {
      if (leaving || config.closeAfterMs === 0) {
        stop('SIGTERM');
        return;
      }
      leaving = true;
      runtime.log.info(
        { closeAfterMs: config.closeAfterMs },
        'SIGTERM: /readyz is 503 from now on, calls are still served',
      );
      opening.leave();
      // A client that keeps its connection would meet its end in the middle of a request.
      app.server.prependListener('request', (_request, response) => {
        response.shouldKeepAlive = false;
      });
      runtime.timers.after(config.closeAfterMs, () => stop('SIGTERM'));
    };
    let draining = false;
    const drain = async (signal: string): Promise<void> => {
      if (draining) return;
      draining = true;
      runtime.log.info({ signal }, 'closing: no new orders, finishing what is in flight');
      runtime.timers.after(DRAIN_MS_MAX, () => {
        runtime.log.error('not everything ended in time; leaving');
        process.exit(1);
      });
      opening.stop();
      // Who has its answer and keeps the connection would be waited for, and so would who never sent anything.
      runtime.timers.every(IDLE_LOOK_MS, () => {
        app.server.closeIdleConnections();
        for (const socket of sockets) if (socket.bytesRead === 0) socket.destroy();
      });
      runtime.timers.after(HALF_SENT_MS_MAX, () => app.server.closeAllConnections());
      // Stops accepting and lets requests in flight end; then the pipe, the writer and the ledger.
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
          `port ${config.port} of ${config.host} is in use; choose another with --port`,
        );
      }
      if (code === 'EADDRNOTAVAIL' || code === 'ENOTFOUND') {
        throw new TerminalError('bad_config', `HOST ${config.host} is not an address of this machine`);
      }
      if (code === 'EACCES') throw new TerminalError('bad_config', `PORT ${config.port} may not be used by this user`);
      throw error;
    }
    const { port } = app.server.address() as { port: number };
    const url = `http://${config.host.includes(':') ? `[${config.host}]` : config.host}:${port}`;
    if (first !== null) {
      console.error(`doorbuster serve: ${first}; answering 503 and trying again every second`);
      // A demo's log is on stderr, too.
      if (!demo) tellWaiting(runtime.log, first);
      void opening.openLater();
    }
    if (demo) {
      const shop = await Promise.race([opening.opened, closed.promise]);
      if (typeof shop !== 'number') console.log(demoWords(url, keys, await demoSale(shop)));
    } else {
      announce(runtime.log, { url }, `doorbuster: listening on ${url}`);
    }
    return closed.promise;
  },
};

function neededKeys({ adminKeys, authSecrets }: Config) {
  if (adminKeys === null) throw new TerminalError('bad_config', 'DOORBUSTER_ADMIN_KEY is not set (or try --demo)');
  if (authSecrets === null) throw new TerminalError('bad_config', 'DOORBUSTER_AUTH_SECRET is not set (or try --demo)');
  return { adminKeys, authSecrets };
}

/**
 * A shop that may not be open yet: a data folder that is read-only or a disk that is full at the start is a bad day,
 * not a mistake, so the server answers 503, says why, and opens when it can. A mistake (another server in the folder,
 * a damaged file, a newer schema) ends the start.
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

  /** Null if it is open now, else why it cannot be yet. */
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
          this.#runtime.log.info('the ledger is open now');
          return;
        }
      } catch (error) {
        // A mistake that shows only now, for instance another server that took the folder first.
        this.#reason = messageOf(error);
        this.#runtime.log.error({ err: error }, 'the ledger cannot be opened');
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

  /** Serves as before, and says that nobody should be sent here any more. */
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
