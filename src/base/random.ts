import { randomBytes, randomUUID } from 'node:crypto';

/** Randomness as a dependency, so that a simulator can replay a run from its seed. */
export interface Random {
  /** A number in [0, 1). Not for secrets. */
  fraction(): number;
  uuid(): string;
  /** A secret of `bytes` bytes in hexadecimal, which needs no quoting and never looks like a flag. */
  secret(bytes: number): string;
}

export const systemRandom: Random = {
  fraction: () => Math.random(),
  uuid: () => randomUUID(),
  secret: (bytes) => randomBytes(bytes).toString('hex'),
};

/** mulberry32: small, fast, and the same sequence for the same seed. For tests and load, never for secrets. */
export function seededRandom(seed: number): Random {
  let state = seed >>> 0;
  const fraction = (): number => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
  const hex = (digits: number): string =>
    Array.from({ length: digits }, () => Math.floor(fraction() * 16).toString(16)).join('');
  return { fraction, uuid: () => `${hex(8)}-${hex(4)}-4${hex(3)}-8${hex(3)}-${hex(12)}`, secret: (b) => hex(b * 2) };
}
