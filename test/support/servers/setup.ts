import { chmodSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestProject } from 'vitest/node';
import { installMissing, PRODUCTS } from './install.ts';
import { readSkipped } from './skipped.ts';
import { TEMPLATES_VARIABLE } from './template.ts';

declare module 'vitest' {
  interface ProvidedContext {
    /** Why a server is not on this machine, by its name. */
    serversMissing: Record<string, string>;
    /** Where suites that are skipped for that put their names. */
    skippedFile: string;
  }
}

/** Once before all test files: provides the servers that tests start. Once after them: says what did not run. */
export default function setup(project: TestProject): () => void {
  const folder = mkdtempSync(join(tmpdir(), 'doorbuster-run-'));
  // Servers that run as another user copy their templates from there.
  chmodSync(folder, 0o711);
  const templates = join(folder, 'templates');
  mkdirSync(templates, { mode: 0o711 });
  // By the environment: programs that tests start are told nothing else.
  process.env[TEMPLATES_VARIABLE] = templates;
  const skippedFile = join(folder, 'skipped');
  project.provide('skippedFile', skippedFile);
  project.provide(
    'serversMissing',
    installMissing(PRODUCTS, (line) => console.log(line)),
  );
  return () => {
    for (const { name, reason } of readSkipped(skippedFile)) console.log(`skipped: ${name} (${reason})`);
    rmSync(folder, { recursive: true, force: true });
  };
}
