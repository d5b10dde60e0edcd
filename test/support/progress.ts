import { relative } from 'node:path';
import type { UserConsoleLog } from 'vitest';
import type { Reporter, TestModule, TestSpecification } from 'vitest/node';
import { ROOT } from './server.ts';

const SEED = /\bseed\b[ =]+\d+/i;

/** For runs of hours (`npm run test:long`): a line for each file, with how many are left; at the end every seed. */
export default class Progress implements Reporter {
  readonly #begunMs = performance.now();
  readonly #begun = new Map<string, number>();
  readonly #seeds = new Set<string>();
  #files = 0;
  #ended = 0;

  onTestRunStart(specifications: readonly TestSpecification[]): void {
    this.#files = specifications.length;
  }

  onTestModuleStart(file: TestModule): void {
    this.#begun.set(file.id, performance.now());
  }

  onTestModuleEnd(file: TestModule): void {
    const tookMs = performance.now() - (this.#begun.get(file.id) ?? performance.now());
    const path = relative(ROOT, file.moduleId);
    const after = `${seconds(performance.now() - this.#begunMs)} after the start`;
    console.log(`${++this.#ended} of ${this.#files}: ${path} ${file.state()} in ${seconds(tookMs)}, ${after}`);
  }

  onUserConsoleLog({ content }: UserConsoleLog): void {
    for (const line of content.split('\n')) if (SEED.test(line)) this.#seeds.add(line.trim());
  }

  onTestRunEnd(): void {
    if (this.#seeds.size > 0) console.log(`seeds:\n${[...this.#seeds].sort().join('\n')}`);
  }
}

function seconds(ms: number): string {
  return `${Math.round(ms / 1000)} s`;
}
