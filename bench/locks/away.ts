import { once } from 'node:events';
import { connect } from 'node:net';
import { cpuMs, end, median, report, start } from '../support.ts';
import { type Crowd, measure, type Outcome } from './crowd.ts';
import { Server } from './server.ts';
import { PATCHES, patchedCopy, type Variation } from './variants.ts';

/**
 * Which of the techniques that were tuned with Redis on the same machine pay when it is 0.5 ms away? Each is turned on
 * or off in a copy of the sources, and the copies take turns in one run, through a proxy that delays and without it.
 */
const AWAY_MS = 0.5;
/** What pays less is not worth its code. */
const WORTH = 1.3;

interface Variant {
  readonly title: string;
  readonly patches: readonly Variation[];
}

const PLAIN: Variant = { title: 'as it is', patches: [] };
const TURNS: Variant = { title: 'attentive: true', patches: ['busy turns'] };
const COMMANDS: Variant = { title: "ioredis' own commands", patches: ["ioredis' own commands"] };
const VARIANTS = [PLAIN, TURNS, COMMANDS];

/** What a technique brings: one variant beside another. Those that were measured and removed: docs/internals/measurements.md. */
const QUESTIONS: [technique: string, on: Variant, off: Variant][] = [
  ['busy turns (attentive)', TURNS, PLAIN],
  ['hand-made commands', PLAIN, COMMANDS],
];

interface Scene {
  readonly title: string;
  readonly crowd: Pick<Crowd, 'processes' | 'waiters' | 'names'>;
  score(outcome: Outcome): number;
}

const SCENES: Scene[] = [
  ...[1, 64].map((waiters) => ({
    title: `pairs/s, ${waiters} at a time`,
    crowd: { processes: 1, waiters, names: 'own' } as const,
    score: ({ grantsPerSecond }: Outcome) => grantsPerSecond,
  })),
  ...[20, 1000].map((waiters) => ({
    title: `hand-overs/s, ${waiters} waiters`,
    crowd: { processes: 4, waiters, names: 'shared' } as const,
    score: ({ handOversPerSecond }: Outcome) => handOversPerSecond,
  })),
];

/** How long a PING takes, one after the other: median and 95th percentile, in ms. */
async function ping(port: number): Promise<{ p50Ms: number; p95Ms: number }> {
  const socket = connect(port, '127.0.0.1').setNoDelay(true);
  await once(socket, 'connect');
  const took: number[] = [];
  for (let i = 0; i < 1500; i++) {
    const sentMs = performance.now();
    socket.write('PING\r\n');
    await once(socket, 'data');
    // The first ones meet code that is not compiled yet.
    if (i >= 500) took.push(performance.now() - sentMs);
  }
  socket.destroy();
  took.sort((a, b) => a - b);
  return { p50Ms: median(took), p95Ms: took[Math.floor(took.length * 0.95)]! };
}

/** A proxy through which a PING takes `AWAY_MS` longer: tried, and corrected by what was seen. */
async function proxyTo(port: number, directMs: number): Promise<Awaited<ReturnType<typeof start>>> {
  let delayUs = (AWAY_MS * 1000) / 2;
  for (let correction = 0; ; correction++) {
    const proxy = await start(['bench/locks/proxy.ts', String(port), String(delayUs)]);
    const { p50Ms } = await ping(proxy.port);
    const errorMs = p50Ms - directMs - AWAY_MS;
    if (Math.abs(errorMs) < 0.02 || correction === 4) return proxy;
    delayUs = Math.max(0, delayUs - (errorMs * 1000) / 2);
    await end(proxy.child);
  }
}

const fixed = (value: number, digits = 2): number => Number(value.toFixed(digits));

class Distance {
  readonly #title: string;
  readonly #url: string;
  readonly #outcomes = new Map<Scene, Map<Variant, Outcome[]>>(SCENES.map((scene) => [scene, new Map()]));

  constructor(title: string, url: string) {
    this.#title = title;
    this.#url = url;
  }

  async round(server: Server, folders: Map<Variant, string>, round: number, durationMs: number): Promise<void> {
    for (const scene of SCENES) {
      // Nobody always goes first, or always after the same one.
      const turn = Math.floor(round / 2) % VARIANTS.length;
      const order = [...VARIANTS.slice(turn), ...VARIANTS.slice(0, turn)];
      for (const variant of round % 2 === 0 ? order : order.reverse()) {
        const chosen = { root: folders.get(variant)!, file: 'locks/doorbuster.ts', index: 0 };
        const crowd = { ...scene.crowd, warmMs: durationMs / 3, durationMs };
        const outcome = await measure(server, chosen, crowd, this.#url);
        if (outcome.violations > 0) throw new Error(`${variant.title}, ${scene.title}: two held it at a time`);
        if (outcome.trouble !== null) console.error(`  ${variant.title}, ${scene.title}: ${outcome.trouble}`);
        const outcomes = this.#outcomes.get(scene)!;
        outcomes.set(variant, [...(outcomes.get(variant) ?? []), outcome]);
        console.error(`  ${this.#title}, ${scene.title}, ${variant.title}: ${scene.score(outcome).toFixed(0)}`);
      }
    }
  }

  #ratios(scene: Scene, on: Variant, off: Variant): number[] {
    const others = this.#outcomes.get(scene)!.get(off)!;
    return this.#outcomes
      .get(scene)!
      .get(on)!
      .map((outcome, round) => scene.score(outcome) / scene.score(others[round]!));
  }

  /** Per variant: the score of every scene, and what a hand-over among 20 costs Redis. */
  figures(): Record<string, unknown>[] {
    return VARIANTS.map((variant) => {
      const row: Record<string, unknown> = { variant: variant.title };
      for (const scene of SCENES) {
        const outcomes = this.#outcomes.get(scene)!.get(variant)!;
        row[scene.title] = Math.round(median(outcomes.map(scene.score)));
        if (scene.crowd.names === 'own') continue;
        row[`commands, ${scene.crowd.waiters}`] = fixed(median(outcomes.map((each) => each.commandsPerGrant!)), 1);
      }
      return row;
    });
  }

  /** Per technique: the median of the rounds' ratios on : off, and the smallest and the largest. */
  ratios(): Record<string, unknown>[] {
    return QUESTIONS.map(([technique, on, off]) => {
      const row: Record<string, unknown> = { technique };
      let best = 0;
      for (const scene of SCENES) {
        const ratios = this.#ratios(scene, on, off).sort((a, b) => a - b);
        best = Math.max(best, median(ratios));
        row[scene.title] = `${median(ratios).toFixed(2)} (${ratios[0]!.toFixed(2)}–${ratios.at(-1)!.toFixed(2)})`;
      }
      row[`pays (≥ ${WORTH})`] = best >= WORTH ? 'yes' : 'no';
      return row;
    });
  }

  outcomes(): unknown[] {
    return [...this.#outcomes].flatMap(([scene, variants]) =>
      [...variants].map(([variant, outcomes]) => ({
        distance: this.#title,
        scene: scene.title,
        variant: variant.title,
        outcomes,
      })),
    );
  }
}

export async function away(args: string[]): Promise<void> {
  const quick = args.includes('--quick');
  const rounds = quick ? { away: 1, near: 1 } : { away: 5, near: 3 };
  const durationMs = quick ? 600 : 2000;
  const server = await Server.start();
  const port = Number(new URL(server.url).port);
  const folders = new Map(
    VARIANTS.map((variant) => [variant, patchedCopy(variant.patches.flatMap((each) => PATCHES[each]))]),
  );
  const direct = await ping(port);
  const proxy = await proxyTo(port, direct.p50Ms);
  const through = await ping(proxy.port);
  const pings = [
    { way: 'direct', ...direct },
    { way: 'through the proxy', ...through },
  ].map(({ way, p50Ms, p95Ms }) => ({ way, 'p50 ms': fixed(p50Ms, 3), 'p95 ms': fixed(p95Ms, 3) }));
  console.table(pings);

  const far = new Distance('away', `redis://127.0.0.1:${proxy.port}`);
  const near = new Distance('near', server.url);
  const [beganMs, beganCpuMs] = [performance.now(), cpuMs(proxy.child.pid!)];
  for (let round = 0; round < rounds.away; round++) await far.round(server, folders, round, durationMs);
  const usedMs = cpuMs(proxy.child.pid!);
  const proxyCores =
    usedMs === null || beganCpuMs === null ? null : fixed((usedMs - beganCpuMs) / (performance.now() - beganMs));
  for (let round = 0; round < rounds.near; round++) await near.round(server, folders, round, durationMs);

  report(
    'locks-away',
    {
      PING: pings,
      [`${AWAY_MS} ms away: on : off, median of the rounds (smallest–largest)`]: far.ratios(),
      [`${AWAY_MS} ms away: figures`]: far.figures(),
      'on the same machine: on : off': near.ratios(),
      'on the same machine: figures': near.figures(),
    },
    [
      'a network: the delay is a proxy on the same two cores, which takes CPU time of its own (proxyCores in the JSON) and loses no packets',
      'the cost of a technique in CPU time of the clients, and what it costs those who wait elsewhere',
      'work under the lock, more than one lock with waiters, clusters',
      "ioredis' own commands at their best: that variant still encodes the arguments first, and reads them back",
    ],
    { rounds, durationMs, proxyCores, outcomes: [...far.outcomes(), ...near.outcomes()] },
  );
  // Redis and the proxy go with this process.
  process.exit(0);
}
