import { chmodSync, mkdirSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestProject } from 'vitest/node';
import { ROOT } from '../server.ts';
import { cleanUpServers, remember } from './clean-up.ts';
import { DESK_VARIABLE, openDesk } from './desk.ts';
import { installMissing, PRODUCTS } from './install.ts';
import { startKafka } from './kafka.ts';
import { startSharedMariadb } from './mariadb.ts';
import { startSharedPostgres } from './postgres.ts';
import { drawPortsBesideWorkers } from './process.ts';
import { startRabbitmq } from './rabbitmq.ts';
import { readSkipped } from './skipped.ts';
import { TEMPLATES_VARIABLE } from './template.ts';

declare module 'vitest' {
  interface ProvidedContext {
    /** Why a server is missing on this machine, by name. */
    serversMissing: Record<string, string>;
    /** The file in which skipped suites record their names. */
    skippedFile: string;
  }
}

/**
 * Node's compile cache for the hundreds of processes that a run starts: it shortens each start by a third.
 * It stays for the next run.
 */
const COMPILED = join(ROOT, 'node_modules', '.cache', 'doorbuster-tests');
/** Programs in temporary folders are cached, too, and never used again: the cache is cleared beyond this many files. */
const COMPILED_FILES_MAX = 20_000;

/** Runs before all test files: installs servers. Its result runs after them: reports what was skipped. */
export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const folder = mkdtempSync(join(tmpdir(), 'doorbuster-run-'));
  // Servers that run as another user copy their templates from there.
  chmodSync(folder, 0o711);
  const remove = (): void => rmSync(folder, { recursive: true, force: true, maxRetries: 2 });
  // A run that is interrupted ends here, too.
  remember({ end: async () => remove(), endNow: remove });
  const templates = join(folder, 'templates');
  mkdirSync(templates, { mode: 0o711 });
  // Through the environment, which programs that tests start inherit.
  process.env[TEMPLATES_VARIABLE] = templates;
  keepCompiled();
  const skippedFile = join(folder, 'skipped');
  project.provide('skippedFile', skippedFile);
  project.provide(
    'serversMissing',
    installMissing(PRODUCTS, (line) => console.log(line)),
  );
  drawPortsBesideWorkers();
  const socket = join(folder, 'desk');
  const desk = await openDesk(socket, {
    mariadb: startSharedMariadb,
    postgres: startSharedPostgres,
    rabbitmq: startRabbitmq,
    kafka: startKafka,
  });
  if (desk) process.env[DESK_VARIABLE] = socket;
  return async () => {
    desk?.close();
    for (const { name, reason } of readSkipped(skippedFile)) console.log(`skipped: ${name} (${reason})`);
    await cleanUpServers();
  };
}

function keepCompiled(): void {
  if (process.env.NODE_COMPILE_CACHE !== undefined) return;
  mkdirSync(COMPILED, { recursive: true });
  if (readdirSync(COMPILED, { recursive: true }).length > COMPILED_FILES_MAX) rmSync(COMPILED, { recursive: true });
  process.env.NODE_COMPILE_CACHE = COMPILED;
}
