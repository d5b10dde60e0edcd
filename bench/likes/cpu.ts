import { cpuMs, median } from '../support.ts';

type Pids = Readonly<Record<string, number | undefined>>;

/** CPU time a like, by process. On a machine that others use it is steadier than likes a second. */
export class CpuTimes {
  readonly #servers: Pids;
  readonly #seen = new Map<string, { what: string; posts: number; parts: Record<string, number[]> }>();

  constructor(servers: Pids) {
    this.#servers = servers;
  }

  async of<T>(
    what: string,
    posts: number,
    processes: Pids,
    measure: () => Promise<{ value: T; count: number }>,
  ): Promise<T> {
    const pids = Object.entries({ ...processes, ...this.#servers });
    const read = (): number[] => pids.map(([, pid]) => (pid === undefined ? 0 : (cpuMs(pid) ?? Number.NaN)));
    const before = read();
    const { value, count } = await measure();
    const after = read();
    const name = `${what} ${posts}`;
    const seen = this.#seen.get(name) ?? { what, posts, parts: {} };
    this.#seen.set(name, seen);
    for (const [at, [part]] of pids.entries()) {
      seen.parts[part] ??= [];
      seen.parts[part].push(((after[at]! - before[at]!) * 1000) / count);
    }
    return value;
  }

  clear(): void {
    this.#seen.clear();
  }

  rows(): Record<string, unknown>[] {
    return [...this.#seen.values()].map(({ what, posts, parts }) => {
      const medians = Object.entries(parts).map(([part, all]): [string, number] => [part, median(all)]);
      const all = medians.reduce((sum, [, us]) => sum + us, 0);
      const columns = [...medians, ['all', all] as const].map(([part, us]) => [part, Number(us.toFixed(1))]);
      return { posts, what, ...Object.fromEntries(columns) };
    });
  }
}
