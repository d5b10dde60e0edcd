import { spawn } from 'node:child_process';
import { readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { track } from '../support/server.ts';

/** One run of vitest in a copy of the project. */
export interface TestRun {
  readonly passed: readonly string[];
  readonly skipped: readonly string[];
  readonly failed: readonly { readonly name: string; readonly message: string }[];
  /** Test files that could not be loaded, or a run that did not come to its end: nothing was tested. */
  readonly broken: string | null;
}

interface Report {
  readonly testResults: readonly {
    readonly name: string;
    readonly message: string;
    readonly status: string;
    readonly assertionResults: readonly {
      readonly fullName: string;
      readonly status: string;
      readonly failureMessages: readonly string[] | null;
    }[];
  }[];
}

/** A run that takes longer hangs in a loop: nothing else keeps a test from ending after half a minute. */
const RUN_MS_MAX = 180_000;
const WHOLE_MS_MAX = 600_000;
const OUTPUT_MAX = 4000;

/** What the run of which this is a part has set for itself. */
function ownEnvironment(): NodeJS.ProcessEnv {
  const mine = /^(VITEST|DOORBUSTER_TEST_(LONG|DESK|TEMPLATES)$|TINYPOOL|TEST$|NODE_ENV$)/;
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => !mine.test(name)));
}

/** Runs these test files in the folder. It ends with the first test that fails, unless `whole`. */
export async function runTests(
  folder: string,
  files: readonly string[],
  { only, whole = false }: { readonly only?: string | undefined; readonly whole?: boolean } = {},
): Promise<TestRun> {
  const outputFile = join(folder, 'report.json');
  rmSync(outputFile, { force: true });
  const args = ['node_modules/vitest/vitest.mjs', 'run', '--maxWorkers=1', '--reporter=json'];
  args.push(`--outputFile=${outputFile}`, ...(whole ? [] : ['--bail=1']));
  args.push(...(only === undefined ? [] : ['-t', only]), ...files);
  // A group of its own: servers that a test has started end with it.
  const child = spawn(process.execPath, args, { cwd: folder, env: ownEnvironment(), detached: true });
  track(child);
  let output = '';
  const keep = (chunk: Buffer): void => {
    output = (output + chunk).slice(-OUTPUT_MAX);
  };
  child.stdout.on('data', keep);
  child.stderr.on('data', keep);
  const late = setTimeout(() => process.kill(-child.pid!, 'SIGKILL'), whole ? WHOLE_MS_MAX : RUN_MS_MAX);
  await new Promise((resolve) => child.on('close', resolve));
  clearTimeout(late);
  try {
    return verdictOf(JSON.parse(readFileSync(outputFile, 'utf8')) as Report);
  } catch {
    return { passed: [], skipped: [], failed: [], broken: `no report: ${output}` };
  }
}

function verdictOf({ testResults }: Report): TestRun {
  const tests = testResults.flatMap(({ assertionResults }) => assertionResults);
  const unloaded = testResults.find(
    ({ status, assertionResults }) => status === 'failed' && assertionResults.length === 0,
  );
  const named = (as: string): string[] => tests.filter(({ status }) => status === as).map(({ fullName }) => fullName);
  return {
    passed: named('passed'),
    skipped: named('skipped'),
    failed: tests
      .filter(({ status }) => status === 'failed')
      .map(({ fullName, failureMessages }) => ({ name: fullName, message: (failureMessages ?? []).join('\n') })),
    broken: unloaded === undefined ? null : `${unloaded.name}: ${unloaded.message}`,
  };
}
