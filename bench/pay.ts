// Compares payments of one item through the group commit with one transaction each under a lock, and with bare rows in batches.
import { cleanUpServers } from '../test/support/servers/clean-up.ts';
import { startRedis } from '../test/support/servers/redis.ts';
import { STORES } from './pay/stores.ts';
import { Bench, type Figure, type Target } from './pay/targets.ts';
import { median, report } from './support.ts';

const TARGET = 10;

function nameOf({ what, setting }: Target): string {
  return `${what} (${setting})`;
}

export async function run(args: string[]): Promise<void> {
  const quick = args.includes('--quick');
  const only = args.find((arg) => arg.startsWith('--only='))?.slice('--only='.length);
  const [rounds, tryMs, roundMs] = quick ? [3, 120, 250] : [5, 300, 700];
  const rows: Record<string, unknown>[] = [];
  const verdicts: Record<string, unknown>[] = [];
  const all: Record<string, unknown>[] = [];
  const versions: Record<string, string> = {};
  for (const name of Object.keys(STORES)) {
    if (only !== undefined && only !== name) continue;
    const redis = name === 'sqlite' ? null : (await startRedis()).url;
    const bench = await Bench.open(name, redis);
    versions[name] = bench.store.version;
    console.error(`${bench.store.version}: trying settings…`);
    const { targets, judged, beside } = await bench.plan(tryMs, quick);
    const figures = new Map<Target, Figure[]>(targets.map((target) => [target, []]));
    for (let round = 1; round <= rounds; round++) {
      console.error(`${name}: round ${round} of ${rounds}`);
      for (let at = 0; at < targets.length; at++) {
        // Rotate the order, so that growing tables affect all sides alike.
        const target = targets[(at + round * 3) % targets.length]!;
        const figure = await bench.measure(target, roundMs);
        figures.get(target)!.push(figure);
        all.push({ database: name, round, what: nameOf(target), ...figure });
      }
    }
    const ratio = (a: Target, b: Target): number =>
      median(figures.get(a)!.map(({ perSecond }, round) => perSecond / figures.get(b)![round]!.perSecond));
    for (const target of targets) {
      const mine = figures.get(target)!;
      const of = (pick: (figure: Figure) => number, digits = 0): number =>
        Number(median(mine.map(pick)).toFixed(digits));
      rows.push({
        database: name,
        what: target.what,
        setting: target.setting,
        'payments/s': of(({ perSecond }) => perSecond),
        best: Math.round(Math.max(...mine.map(({ perSecond }) => perSecond))),
        'of one each': Number(ratio(target, targets[0]!).toFixed(2)),
        'p50 ms': of(({ p50Ms }) => p50Ms, 1),
        'p99 ms': of(({ p99Ms }) => p99Ms, 1),
        'CPU µs': of(({ nodeUs }) => nodeUs),
        'database CPU µs': name === 'sqlite' ? '' : of(({ databaseUs }) => databaseUs),
        'moves a commit': mine[0]!.together === null ? '' : of(({ together }) => together!),
      });
    }
    for (const [ours, base] of judged) {
      const figure = ratio(ours, base);
      const verdict = name === 'sqlite' ? 'no target' : figure >= TARGET ? 'holds' : 'missed';
      const target = `${nameOf(ours)} ≥ ${TARGET} × ${nameOf(base)}`;
      verdicts.push({ database: name, target, figure: figure.toFixed(2), verdict });
    }
    for (const [ours, other] of beside) {
      const figure = ratio(ours, other).toFixed(2);
      verdicts.push({ database: name, target: `${nameOf(ours)} : ${nameOf(other)}`, figure, verdict: 'no target' });
    }
    await bench.close();
    await cleanUpServers();
  }
  report(
    'pay',
    { pay: rows, targets: verdicts },
    [
      'a network: databases and Redis are on the same machine and its two cores; elsewhere a trip costs more, and one transaction each needs five, seven with its lock in Redis',
      'a provider: this one answers at once in process; a real one takes longer than all the rest, whoever pays',
      'HTTP, tokens and schemas; keepers, webhooks and events beside the payments',
      'several processes that pay orders of one item: each groups for itself',
      'double clicks, declined payments, orders that expire meanwhile: nobody waits for the lock of an order',
      'the audit, which no baseline writes and ours does; and, for one transaction each, the attempt before the provider is called',
      'tables larger than memory, replication, a binary log',
    ],
    { versions, rounds: all },
  );
  process.exit(0);
}
