import { relative } from 'node:path';
import { describe, expect, inject } from 'vitest';
import { ROOT } from '../server.ts';
import { type Product, REDIS, whyMissing } from './install.ts';
import { noteSkipped } from './skipped.ts';

/** A suite that starts, pauses or kills a Redis of its own. Where there is none it is skipped, and named at the end. */
export function describeWithRedis(name: string, suite: () => void): void {
  describeWith(REDIS, name, suite);
}

/** A suite that needs any Redis, and takes what redisUrl() gives. */
export function describeWithAnyRedis(name: string, suite: () => void): void {
  if (process.env[REDIS.urlVariable]) describe(name, suite);
  else describeWith(REDIS, name, suite);
}

function describeWith(product: Product, name: string, suite: () => void): void {
  const missing = whyMissing(product);
  if (missing === null) {
    describe(name, suite);
    return;
  }
  // The set-up knows more: it has tried to install it.
  const reason = inject('serversMissing')?.[product.binary] ?? missing;
  const file = inject('skippedFile');
  const path = expect.getState().testPath;
  if (file) noteSkipped(file, { name: path ? `${relative(ROOT, path)} > ${name}` : name, reason });
  describe.skip(name, suite);
}
