import type { ChildProcess } from 'node:child_process';
import type { Result } from './load/load.ts';
import { cpuMs, load, median, report, runJson, start, temporaryFolder } from './support.ts';

/**
 * Compares the embedded order path over HTTP with a bare Fastify route with the same auth and schema, in alternating rounds
 * of one run: each round gives a ratio, and the figure is the median of the rounds. Buyers have random names and order once.
 *
 * There are two floors: the usual bare route, to which the targets refer, and the same route with its answers sent at the end
 * of each turn of the event loop, like ours, which is harder to match.
 */
const CONNECTIONS = 128;

class Target {
  readonly name: string;
  readonly results: Result[] = [];
  readonly cpuUs: number[] = [];
  readonly #port: number;
  readonly #pid: number;
  readonly #request: { path: string; body: string; expect: number; keyed: boolean; again: boolean };

  constructor(name: string, server: { port: number; child: ChildProcess }, request: Wish) {
    this.name = name;
    this.#port = server.port;
    this.#pid = server.child.pid!;
    const { saleId, item, expect, keyed = false, again = false } = request;
    const body = JSON.stringify({ item, quantity: 1 });
    this.#request = { path: `/v1/sales/${saleId}/orders`, body, expect, keyed, again };
  }

  async run(durationMs: number): Promise<Result> {
    const buyers = this.#request.again ? 5000 : 35 * durationMs;
    return load({ ...this.#request, port: this.#port, connections: CONNECTIONS, durationMs, buyers });
  }

  async measure(durationMs: number): Promise<void> {
    const before = cpuMs(this.#pid);
    const result = await this.run(durationMs);
    const after = cpuMs(this.#pid);
    this.results.push(result);
    if (before !== null && after !== null) this.cpuUs.push(((after - before) * 1000) / result.requests);
  }

  median(of: (result: Result) => number): number {
    return median(this.results.map(of));
  }

  /** The median of the rounds' ratios. */
  ratioTo(other: Target): number {
    return rounded(median(this.results.map((result, round) => result.perSecond / other.results[round]!.perSecond)));
  }
}

interface Wish {
  saleId: string;
  item: string;
  expect: number;
  keyed?: boolean;
  /** Buyers order again: for refusals. */
  again?: boolean;
}

function rounded(ratio: number): number {
  return Number(ratio.toFixed(3));
}

export async function run(args: string[]): Promise<void> {
  const quick = args.includes('--quick');
  const rounds = quick ? 3 : 5;
  const durationMs = quick ? 1500 : 2500;
  const sustainedMs = quick ? 3000 : 30_000;
  const fill = quick ? 100_000 : 1_000_000;

  console.error('filling the ledgers…');
  const [emptyFolder, fullFolder] = [temporaryFolder(), temporaryFolder()];
  const empty = await runJson<{ saleId: string }>(['bench/load/fill.ts', emptyFolder, '0']);
  const full = await runJson<{ saleId: string }>(['bench/load/fill.ts', fullFolder, String(fill)]);
  const serve = (data: string) =>
    start(['bin/doorbuster.js', 'serve', '--port', '0', '--data', data], { RATE_LIMIT_BUYER: '100000' });
  const bareServer = await start(['bench/baselines/bare-fastify.ts']);
  const turnedServer = await start(['bench/baselines/bare-fastify.ts', 'turn']);
  const ours = await serve(emptyFolder);
  const laden = await serve(fullFolder);

  const order = { saleId: empty.saleId, item: 'voucher', expect: 201 };
  const ladenOrder = { ...order, saleId: full.saleId };
  const bare = new Target('bare Fastify', bareServer, { ...order, again: true });
  const turned = new Target('bare Fastify, answers at the end of the turn', turnedServer, { ...order, again: true });
  const accepted = new Target('accepted', ours, order);
  const keyed = new Target('accepted, keyed', ours, { ...order, keyed: true });
  const refused = new Target('refused (sold out)', ours, { ...order, item: 'none', expect: 409, again: true });
  const acceptedLaden = new Target(`accepted, ${fill} orders before`, laden, ladenOrder);
  const keyedLaden = new Target(`accepted, keyed, ${fill} orders before`, laden, { ...ladenOrder, keyed: true });
  const targets = [bare, turned, accepted, keyed, refused, acceptedLaden, keyedLaden];

  for (const target of targets) await target.run(1000);
  for (let round = 1; round <= rounds; round++) {
    for (const target of targets) await target.measure(durationMs);
    const seen = targets.map(({ name, results }) => `${name} ${results.at(-1)!.perSecond}`);
    console.error(`round ${round} of ${rounds}: ${seen.join(', ')}`);
  }

  const emptyOf = new Map([
    [acceptedLaden, accepted],
    [keyedLaden, keyed],
  ]);
  const rows: Record<string, unknown>[] = targets.map((target) => ({
    what: target.name,
    'per second': target.median(({ perSecond }) => perSecond),
    'of bare': target.ratioTo(bare),
    'of bare, turned': target.ratioTo(turned),
    'of empty ledger': emptyOf.has(target) ? target.ratioTo(emptyOf.get(target)!) : null,
    'server CPU µs': target.cpuUs.length > 0 ? Number(median(target.cpuUs).toFixed(1)) : null,
    'p50 ms': target.median(({ p50Ms }) => p50Ms),
    'p99 ms': target.median(({ p99Ms }) => p99Ms),
  }));

  // Long enough for the tail to reach the length at which it is folded between commits.
  console.error(`${sustainedMs / 1000} s without a pause…`);
  const long = await new Target('', ours, { ...order, item: 'sustained' }).run(sustainedMs);
  const bareAfter = await bare.run(durationMs);
  const turnedAfter = await turned.run(durationMs);
  rows.push({
    what: `accepted, ${sustainedMs / 1000} s without a pause`,
    'per second': long.perSecond,
    'of bare': rounded(long.perSecond / bareAfter.perSecond),
    'of bare, turned': rounded(long.perSecond / turnedAfter.perSecond),
    'p50 ms': long.p50Ms,
    'p99 ms': long.p99Ms,
  });

  console.error('measuring memory…');
  const memory = {
    'without keys, MB per 100 000 buyers': await runJson(['--expose-gc', 'bench/load/memory.ts', 'plain']),
    'with keys, MB per 100 000 buyers': await runJson(['--expose-gc', 'bench/load/memory.ts', 'keyed']),
  };
  console.log(memory);
  report(
    'orders',
    rows,
    [
      'a network: client and server share the machine, and its two cores; the client takes about one of them',
      'TLS, a reverse proxy, other requests beside the orders',
      'the fold of the tail in the short rounds: below 200 000 orders it waits for idle moments; the run without a pause has it',
      'a slow disk: the figures rest on this machine’s fdatasync',
    ],
    { rounds, durationMs, connections: CONNECTIONS, memory },
  );
  for (const { child } of [bareServer, turnedServer, ours, laden]) child.kill('SIGTERM');
}
