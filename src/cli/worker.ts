import { messageInFull, RetryableError, TerminalError } from '../base/errors.ts';
import { KeepAlive } from '../base/keep-alive.ts';
import { announce, createLog, tellWaiting } from '../base/log.ts';
import { systemRuntime } from '../base/runtime.ts';
import { sleep, within } from '../base/timers.ts';
import { deploymentOf, openShop } from '../engine/open.ts';
import { type Command, configOf, parseFlags, settingFlags, settingHelp } from './command.ts';
import { whenNpmEnds } from './npm.ts';

const SETTINGS = [
  'redisUrl',
  'databaseUrl',
  'pipeUrl',
  'redisPrefix',
  'rebuildDrainMs',
  'writerLock',
  'likes',
  'paymentsSandbox',
  'webhooksPrivate',
  'logLevel',
] as const;
const OPEN_RETRY_MS = 1000;
const DRAIN_MS_MAX = 9_500;

export const worker: Command = {
  help: `Usage: doorbuster worker [options]

Runs a worker: it writes admitted orders from Redis to the ledger, rebuilds stale gates, and finishes what processes that
died left undone. Needs REDIS_URL and DATABASE_URL. Run one or more beside \`doorbuster serve --no-worker\`.
On SIGTERM it finishes the batches in hand and exits.

${settingHelp(SETTINGS, [['--migrate', 'bring the schema of the database up to date first']])}`,
  async run(args) {
    const flags = parseFlags(args, { ...settingFlags(SETTINGS), migrate: { type: 'boolean' } });
    const config = configOf(flags);
    if (deploymentOf(config) !== 'distributed') {
      throw new TerminalError(
        'bad_config',
        'a worker needs REDIS_URL and DATABASE_URL; without REDIS_URL, run only `doorbuster serve`',
      );
    }
    const runtime = systemRuntime(createLog(config.logLevel));
    const ending = Promise.withResolvers<void>();
    for (const signal of ['SIGTERM', 'SIGINT'] as const) process.on(signal, () => ending.resolve());
    whenNpmEnds(runtime.timers, () => ending.resolve());
    // The shop's own timers do not keep the process alive.
    const keepAlive = new KeepAlive(runtime.timers);
    keepAlive.hold();
    try {
      for (let told = false; ; told = true) {
        try {
          const shop = await openShop(config, { worker: true, migrate: flags['migrate'] === true }, runtime);
          announce(runtime.log, {}, 'doorbuster: worker started');
          await ending.promise;
          // Whatever is unfinished by then stays in the pipe for another worker.
          const closed = await within(
            runtime.timers,
            shop.close().then(() => true),
            DRAIN_MS_MAX,
          );
          return closed ? 0 : 1;
        } catch (error) {
          if (!(error instanceof RetryableError)) throw error;
          if (!told) {
            console.error(`doorbuster worker: ${messageInFull(error)}; retrying every second`);
            tellWaiting(runtime.log, messageInFull(error));
          }
          const ended = await Promise.race([ending.promise.then(() => true), sleep(runtime.timers, OPEN_RETRY_MS)]);
          if (ended === true) return 0;
        }
      }
    } finally {
      keepAlive.close();
    }
  },
};
