// The libraries are installed when the benchmark runs, types are checked without them: so they are imported by a name that
// TypeScript does not follow, and each adapter says what it uses of its library.
export async function load<T>(name: string): Promise<T> {
  return (await import(name)) as T;
}

export interface Ioredis {
  set(...args: (string | number)[]): Promise<string | null>;
  evalsha(...args: (string | number)[]): Promise<unknown>;
  script(...args: string[]): Promise<string>;
  quit(): Promise<unknown>;
}

export async function ioredis(url: string, enableAutoPipelining: boolean): Promise<Ioredis> {
  type Module = { Redis: new (url: string, options: { enableAutoPipelining: boolean }) => Ioredis };
  const { Redis } = await load<Module>('ioredis');
  return new Redis(url, { enableAutoPipelining });
}

export interface Polling {
  /** Milliseconds between attempts; null for the library's own default. */
  readonly delayMs: number | null;
  readonly auto: boolean;
  readonly settings: string;
  readonly only?: 'uncontended' | 'contended';
}

/**
 * What is tried of a library that polls over ioredis: a short delay hands over soonest among few, a long one keeps many from
 * drowning Redis; autopipelining helps many at once.
 */
export function pollings(defaultDelay: string): Polling[] {
  const waits = DELAYS.map(({ delayMs, auto }) => ({
    delayMs,
    auto,
    settings: `retry ${delayMs} ms${auto ? ', autopipelining' : ''}`,
    only: 'contended' as const,
  }));
  return [
    ...waits,
    { delayMs: null, auto: false, settings: `default retry (${defaultDelay})` },
    { delayMs: null, auto: true, settings: 'autopipelining', only: 'uncontended' },
  ];
}

export const DELAYS = [
  { delayMs: 1, auto: false },
  { delayMs: 1, auto: true },
  { delayMs: 5, auto: false },
  { delayMs: 5, auto: true },
  { delayMs: 25, auto: false },
  { delayMs: 100, auto: false },
];
