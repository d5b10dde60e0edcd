import { MessageChannel } from 'node:worker_threads';
import { TerminalError } from '../base/errors.ts';
import { type Runtime, systemRuntime } from '../base/runtime.ts';
import { type CrowdOptions, sendCrowd } from '../crowd/crowd.ts';
import { type LikeCrowdOptions, sendLikers } from '../crowd/likes/crowd.ts';
import { likeIntroduction, likeReportWords } from '../crowd/likes/report.ts';
import { showProgress, type Tally } from '../crowd/progress.ts';
import { introduction, reportWords } from '../crowd/report.ts';
import { BOUNDS } from '../model/sale.ts';
import { type Command, optionHelp, parseFlags, UsageError, wholeFlag } from './command.ts';
import { adminKeyOf, type Flags, urlOf, withKeyJoined } from './remote.ts';

const BUYERS_MAX = 200_000;
const SEED_MAX = 2 ** 32 - 1;
const POSTS_MAX = 100;
const WAIT_SECONDS_MAX = 3_600;
/** The exit code that a shell gives a program ended by Ctrl-C. */
const INTERRUPTED = 130;

const FLAGS = {
  url: { type: 'string', multiple: true },
  sale: { type: 'string' },
  likes: { type: 'boolean' },
  posts: { type: 'string' },
  buyers: { type: 'string' },
  attempts: { type: 'string' },
  rate: { type: 'string' },
  connections: { type: 'string' },
  wait: { type: 'string' },
  item: { type: 'string' },
  quantity: { type: 'string' },
  'top-up': { type: 'string' },
  'admin-key': { type: 'string' },
  seed: { type: 'string' },
  json: { type: 'boolean' },
} as const;

export const crowd: Command = {
  help: `Usage: doorbuster crowd --url <url> --sale <id> --buyers <n> [options]
       doorbuster crowd --url <url> --likes --buyers <n> [options]

Sends a crowd of impatient buyers into a sale, in random order: some click twice, some retry with the same
Idempotency-Key, some with a new one. It follows orders that were answered 202 until they are decided, and then compares
what the buyers were told with the admin's lists.

With --likes the crowd writes a few posts, likes them, takes likes back and clicks twice. When likes have had time to be
stored, it compares counts with the lists of likers, and both with what each liker was told and sees.

${optionHelp([
  ['--url', 'address of the server, such as http://127.0.0.1:8080; repeat it for more processes of the shop'],
  ['--sale', 'id of the sale'],
  ['--likes', 'like posts instead of ordering'],
  ['--posts', 'with --likes: how many new posts (default 3)'],
  ['--buyers', `number of buyers, up to ${BUYERS_MAX}`],
  ['--attempts', 'attempts per buyer, or likes (default 3)'],
  ['--rate', 'orders per second, all buyers together (default: as fast as the server answers)'],
  ['--connections', 'connections kept open to the server (default 50)'],
  ['--wait', 'seconds after the last buyer within which every 202 must be decided, or every like stored (default 60)'],
  ['--item', 'code of the item to order (default: the first counted item with free stock)'],
  ['--quantity', 'units per order (default 1)'],
  ['--top-up', 'before the crowd enters, add stock until this many units are free'],
  ['--admin-key', 'admin key, for the lists and --top-up (DOORBUSTER_ADMIN_KEY)'],
  ['--seed', 'the same seed gives the same crowd (default: random; the report names it)'],
  ['--json', 'print the report as one JSON object, without progress'],
])}

It signs buyers' tokens with DOORBUSTER_AUTH_SECRET, or gets them from a demo server.
Ctrl-C ends it with a verdict on what is known by then.
Exit code: 0 every promise held; 1 one was broken, or the server went away; 2 wrong usage; 130 interrupted, none broken.`,
  async run(args) {
    const flags = parseFlags(withKeyJoined(args), FLAGS);
    const json = flags.json === true;
    const runtime = systemRuntime();
    const interrupt = new AbortController();
    const onSignal = (): void => {
      if (interrupt.signal.aborted) process.exit(INTERRUPTED);
      interrupt.abort();
    };
    // Before anything takes time: the options may be wrong.
    const send = flags.likes === true ? likers(flags) : buyers(flags);
    process.on('SIGINT', onSignal);
    process.on('SIGTERM', onSignal);
    // Our timers do not keep the process alive, and the whole crowd may be waiting for one.
    const { port1: alive } = new MessageChannel();
    alive.ref();
    let endProgress = (): void => {};
    try {
      const { report, words } = await send({
        runtime,
        interrupt: interrupt.signal,
        begins: (introduced) => {
          if (!json) console.log(introduced);
        },
        progress: (tally) => {
          if (!json) endProgress = showProgress(process.stderr, tally, runtime);
        },
      });
      endProgress();
      console.log(json ? JSON.stringify(report) : words());
      return exitCode(report, interrupt.signal.aborted);
    } catch (error) {
      endProgress();
      if (error instanceof TerminalError && error.code === 'cannot_start') throw new UsageError(error.message);
      throw error;
    } finally {
      alive.close();
      process.off('SIGINT', onSignal);
      process.off('SIGTERM', onSignal);
    }
  },
};

interface Going {
  readonly runtime: Runtime;
  readonly interrupt: AbortSignal;
  begins(introduction: string): void;
  progress(tally: () => Tally): void;
}

interface Gone {
  readonly report: { readonly verdict: { readonly held: boolean } | null; readonly endedEarly: string | null };
  /** The report as text. */
  words(): string;
}

function buyers(flags: Flags): (going: Going) => Promise<Gone> {
  const options = optionsOf(flags);
  return async ({ runtime, interrupt, begins, progress }) => {
    const watching = {
      interrupt,
      begins: (known: Parameters<typeof introduction>[0]) => begins(introduction(known, options)),
      progress,
    };
    const report = await sendCrowd(options, watching, runtime);
    return { report, words: () => reportWords(report) };
  };
}

function likers(flags: Flags): (going: Going) => Promise<Gone> {
  const options = likeOptionsOf(flags);
  return async ({ runtime, interrupt, begins, progress }) => {
    const watching = { interrupt, begins: () => begins(likeIntroduction(options)), progress };
    const report = await sendLikers(options, watching, runtime);
    return { report, words: () => likeReportWords(report) };
  };
}

function exitCode({ verdict, endedEarly }: Gone['report'], interrupted: boolean): number {
  if (verdict === null || !verdict.held) return 1;
  if (endedEarly === null) return 0;
  return interrupted ? INTERRUPTED : 1;
}

function optionsOf(flags: Flags): CrowdOptions {
  if (flags.posts !== undefined) throw new UsageError('--posts is about likes: it needs --likes');
  return {
    // In this order: what is missing first is said first.
    urls: urlsOf(flags),
    saleId: needed(flags, 'sale', 'the id of a sale (GET /v1/sales lists them); or --likes'),
    buyers: countOf(flags),
    ...commonOptions(flags),
    item: (flags.item as string | undefined) ?? null,
    quantity: whole(flags, 'quantity', 1, 1, BOUNDS.quantityMax),
    topUp: wholeOrNull(flags, 'top-up', 1, BOUNDS.stockMax),
  };
}

function likeOptionsOf(flags: Flags): LikeCrowdOptions {
  for (const name of ['sale', 'item', 'quantity', 'top-up']) {
    if (flags[name] !== undefined) throw new UsageError(`--${name} is about orders: it does not go with --likes`);
  }
  const urls = urlsOf(flags);
  const likers = countOf(flags);
  return { urls, likers, ...commonOptions(flags), posts: whole(flags, 'posts', 3, 1, POSTS_MAX) };
}

function commonOptions(flags: Flags) {
  return {
    attempts: whole(flags, 'attempts', 3, 1, 100),
    ratePerSecond: wholeOrNull(flags, 'rate', 1, 1_000_000),
    connections: whole(flags, 'connections', 50, 1, 5_000),
    waitSeconds: whole(flags, 'wait', 60, 1, WAIT_SECONDS_MAX),
    adminKey: adminKeyOf(flags, flags.likes === true ? 'to read posts and likes' : 'to read the lists of orders'),
    authSecret: process.env.DOORBUSTER_AUTH_SECRET?.split(',')[0]?.trim() || null,
    seed: wholeOrNull(flags, 'seed', 0, SEED_MAX) ?? Math.floor(systemRuntime().random.fraction() * SEED_MAX),
  };
}

function countOf(flags: Flags): number {
  return whole(flags, 'buyers', Number(needed(flags, 'buyers', 'the number of buyers')), 1, BUYERS_MAX);
}

function whole(flags: Flags, name: string, fallback: number, min: number, max: number): number {
  return wholeFlag(name, flags[name], fallback, min, max);
}

function wholeOrNull(flags: Flags, name: string, min: number, max: number): number | null {
  return flags[name] === undefined ? null : whole(flags, name, 0, min, max);
}

function needed(flags: Flags, name: string, what: string): string {
  const value = flags[name];
  if (typeof value !== 'string' || value === '') throw new UsageError(`--${name} is missing: ${what}`);
  return value;
}

/** Without duplicates: an address that is given twice is one process. */
function urlsOf(flags: Flags): URL[] {
  // The only flag that may be repeated: its value is a list.
  const given = (flags.url as unknown as string[] | undefined) ?? [];
  const texts = given.flatMap((text) => text.split(',')).map((text) => text.trim());
  const url = texts.filter((text) => text !== '').join(',');
  needed({ url }, 'url', 'the address of the server, such as http://127.0.0.1:8080');
  const urls = url.split(',').map(urlOf);
  return [...new Map(urls.map((one) => [one.href, one])).values()];
}
