import type { LockKind } from '../client/port.ts';

interface Frame {
  readonly begin: string;
  readonly clock: string;
  readonly gone: string;
  readonly channel: string;
  /** Kept: they are asked for with every lock. By the list of parts, then by kind. */
  readonly begins: Map<readonly string[], Partial<Record<LockKind | 'latch', readonly string[]>>>;
}

/**
 * Where a lock's keys are. All keys of one lock share the hash tag of their bucket; the locks of a bucket share its clock
 * (the largest number minted), so that names that are used once leave nothing behind and a clock that steps back cannot
 * mint a number twice. One bucket without a cluster: everything that a process asks in one turn goes in one call.
 */
export class Layout {
  readonly #prefix: string;
  readonly #buckets: number;
  /** What the keys of a bucket have in common. */
  readonly #frames: readonly Frame[];

  constructor(prefix: string, cluster: boolean) {
    this.#prefix = prefix;
    this.#buckets = cluster ? 256 : 1;
    this.#frames = Array.from({ length: this.#buckets }, (_, bucket) => {
      const begin = `${prefix}:{${bucket}}:`;
      return { begin, clock: `${begin}clock`, gone: `${begin}gone`, channel: `${begin}wake:`, begins: new Map() };
    });
  }

  bucketOf(name: string): number {
    if (this.#buckets === 1) return 0;
    // FNV-1a: every process must come to the same bucket.
    let hash = 0x811c9dc5;
    for (let i = 0; i < name.length; i++) hash = Math.imul(hash ^ name.charCodeAt(i), 0x01000193);
    return (hash >>> 0) % this.#buckets;
  }

  clock(bucket: number): string {
    return this.#frames[bucket]!.clock;
  }

  gone(bucket: number): string {
    return this.#frames[bucket]!.gone;
  }

  /** What a wake-up channel begins with; the client's name follows. */
  channel(bucket: number): string {
    return this.#frames[bucket]!.channel;
  }

  key(bucket: number, kind: LockKind | 'latch', part: string, name: string): string {
    return `${this.#frames[bucket]!.begin}${kind}:${part}:${name}`;
  }

  /** What the keys of a lock's parts begin with; the name follows. */
  begins(bucket: number, kind: LockKind | 'latch', parts: readonly string[]): readonly string[] {
    const { begins, begin } = this.#frames[bucket]!;
    let found = begins.get(parts)?.[kind];
    if (!found) {
      found = parts.map((part) => `${begin}${kind}:${part}:`);
      begins.set(parts, { ...begins.get(parts), [kind]: found });
    }
    return found;
  }

  /** A SCAN pattern for one part of a kind, in every bucket. */
  pattern(kind: LockKind | 'latch', part: string): string {
    return `${this.#prefix.replace(/[*?[\]\\]/g, '\\$&')}:{*}:${kind}:${part}:*`;
  }

  /** The name in a key that `pattern` matched. */
  nameIn(key: string, kind: LockKind | 'latch', part: string): string {
    const begin = key.indexOf(`}:${kind}:${part}:`, this.#prefix.length);
    return key.slice(begin + kind.length + part.length + 4);
  }
}
