import type { ChildProcess } from 'node:child_process';
import type { Result } from './load/load.ts';
import { cpuMs, load, median, report, runJson, start, temporaryFolder } from './support.ts';

/**
 * The embedded order path over HTTP, beside a bare Fastify route with the same auth and schema, in alternating rounds of
 * one run: a round gives a ratio, the median of the rounds is the figure. Buyers have random names and come once.
 */
const ITEM = (code: string): string => JSON.stringify({ item: code, quantity: 1 });

interface Running {
  port: number;
  child: ChildProcess;
}

interface Target {
  name: string;
  port: number;
  path: string;
  body: string;
  expect: number;
  keyed: boolean;
  again: boolean;
  pid: number;
  results: Result[];
  cpuUs: number[];
}

export async function run(args: string[]): Promise<void> {
  const quick = args.includes('--quick');
  const rounds = quick ? 3 : 7;
  const durationMs = quick ? 1500 : 3000;
  const connections = 128;
  const fill = quick ? 100_000 : 1_000_000;

  console.error('filling the ledgers…');
  const [emptyFolder, fullFolder] = [temporaryFolder(), temporaryFolder()];
  const empty = await runJson<{ saleId: string }>(['bench/load/fill.ts', emptyFolder, '0']);
  const full = await runJson<{ saleId: string }>(['bench/load/fill.ts', fullFolder, String(fill)]);
  const env = { RATE_LIMIT_BUYER: '100000' };
  const bare = await start(['bench/baselines/bare-fastify.ts']);
  const turned = await start(['bench/baselines/bare-fastify.ts', 'turn']);
  const ours = await start(['bin/doorbuster.js', 'serve', '--port', '0', '--data', emptyFolder], env);
  const laden = await start(['bin/doorbuster.js', 'serve', '--port', '0', '--data', fullFolder], env);

  const target = (
    name: string,
    { port, child }: Running,
    saleId: string,
    code: string,
    expect: number,
    keyed = false,
  ): Target => ({
    name,
    port,
    path: `/v1/sales/${saleId}/orders`,
    body: ITEM(code),
    expect,
    keyed,
    again: expect !== 201 || child === bare.child || child === turned.child,
    pid: child.pid!,
    results: [],
    cpuUs: [],
  });
  const targets = [
    target('bare Fastify', bare, empty.saleId, 'voucher', 201),
    target('bare Fastify, answers at the end of the turn', turned, empty.saleId, 'voucher', 201),
    target('accepted', ours, empty.saleId, 'voucher', 201),
    target('accepted, keyed', ours, empty.saleId, 'voucher', 201, true),
    target('refused (sold out)', ours, empty.saleId, 'none', 409),
    target(`accepted, ${fill} orders before`, laden, full.saleId, 'voucher', 201),
    target(`accepted, keyed, ${fill} orders before`, laden, full.saleId, 'voucher', 201, true),
  ];
  for (let round = 0; round <= rounds; round++) {
    for (const of of targets) {
      const { port, path, body, expect, keyed, again } = of;
      const warmUp = round === 0;
      const job = {
        port,
        path,
        body,
        expect,
        keyed,
        again,
        connections,
        durationMs: warmUp ? 1000 : durationMs,
        buyers: again ? 5000 : 35 * durationMs,
      };
      const before = cpuMs(of.pid);
      const result = await load(job);
      const after = cpuMs(of.pid);
      if (warmUp) continue;
      of.results.push(result);
      if (before !== null && after !== null) of.cpuUs.push(((after - before) * 1000) / result.requests);
    }
    console.error(
      `round ${round} of ${rounds}: ${targets.map((of) => `${of.name} ${of.results.at(-1)?.perSecond ?? 'warm-up'}`).join(', ')}`,
    );
  }

  const [floor, accepted, keyed, , acceptedLaden, keyedLaden] = targets as [
    Target,
    Target,
    Target,
    Target,
    Target,
    Target,
  ];
  const ratio = (of: Target, to: Target): number =>
    Number(median(of.results.map((result, round) => result.perSecond / to.results[round]!.perSecond)).toFixed(3));
  const rows = targets.map((of) => ({
    what: of.name,
    'per second': median(of.results.map((result) => result.perSecond)),
    'of bare': ratio(of, floor),
    'of bare, turned': ratio(of, harder),
    'of empty ledger': of === acceptedLaden ? ratio(of, accepted) : of === keyedLaden ? ratio(of, keyed) : null,
    'server CPU µs': of.cpuUs.length > 0 ? Number(median(of.cpuUs).toFixed(1)) : null,
    'p50 ms': median(of.results.map((result) => result.p50Ms)),
    'p99 ms': median(of.results.map((result) => result.p99Ms)),
  }));
  // Long enough for the tail to pass the bound above which it is folded between commits.
  const sustainedMs = quick ? 3000 : 30_000;
  console.error(`${sustainedMs / 1000} s without a pause…`);
  const sustainedJob = {
    ...accepted,
    body: ITEM('sustained'),
    connections,
    durationMs: sustainedMs,
    buyers: 25 * sustainedMs,
  };
  const { port, path, body, expect, keyed: withKeys, again, durationMs: lastsMs, buyers } = sustainedJob;
  const sustained = await load({
    port,
    path,
    body,
    expect,
    keyed: withKeys,
    again,
    connections,
    durationMs: lastsMs,
    buyers,
  });
  const floorAfter = await load({
    port: floor.port,
    path: floor.path,
    body: floor.body,
    expect: 201,
    keyed: false,
    again: true,
    connections,
    durationMs,
    buyers: 5000,
  });
  rows.push({
    what: `accepted, ${sustainedMs / 1000} s without a pause`,
    'per second': sustained.perSecond,
    'of bare': Number((sustained.perSecond / floorAfter.perSecond).toFixed(3)),
    'of bare, turned': null,
    'of empty ledger': null,
    'server CPU µs': null,
    'p50 ms': sustained.p50Ms,
    'p99 ms': sustained.p99Ms,
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
    { rounds, durationMs, connections, memory },
  );
  for (const { child } of [bare, turned, ours, laden]) child.kill('SIGTERM');
}
