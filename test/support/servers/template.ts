import { execFile } from 'node:child_process';
import { chmodSync, chownSync, existsSync, mkdtempSync, renameSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { forget, remember, type Started } from './clean-up.ts';
import { assertReachable, type User } from './user.ts';

/** Names the folder in which all processes of one test run share their templates; setup.ts makes it. */
export const TEMPLATES_VARIABLE = 'DOORBUSTER_TEST_TEMPLATES';

const COMMAND_WITHIN_MS = 60_000;
const execute = promisify(execFile);

/** Runs a program to its end, in this folder and as this user; on failure the error contains its output. */
export async function runAs(
  user: User | null,
  cwd: string,
  command: string,
  args: readonly string[],
  input = '',
): Promise<void> {
  const promise = execute(command, args, {
    cwd,
    timeout: COMMAND_WITHIN_MS,
    killSignal: 'SIGKILL',
    // Not our own home, which the user may not enter.
    env: { ...process.env, HOME: cwd },
    ...(user && { uid: user.uid, gid: user.gid }),
  });
  // A program that ends before it has read everything reports the reason itself.
  promise.child.stdin?.on('error', () => {});
  promise.child.stdin?.end(input);
  try {
    await promise;
  } catch (error) {
    const { message, stdout = '' } = error as Error & { stdout?: string };
    throw new Error(`${message}\n${stdout}`, { cause: error });
  }
}

/**
 * Copies a template data folder to `to`, which must not exist. `make` creates the template once per test run,
 * because copying an initialised database takes a tenth of the time of initialising one.
 */
export async function copyTemplate(
  name: string,
  user: User | null,
  to: string,
  make: (folder: string) => Promise<void>,
): Promise<void> {
  const templates = process.env[TEMPLATES_VARIABLE] ?? ourTemplates();
  const template = join(templates, name);
  if (!existsSync(template)) await makeTemplate(template, user, make);
  // As the user, so that the copy belongs to it.
  await runAs(user, templates, 'cp', ['-R', template, to]);
}

async function makeTemplate(
  template: string,
  user: User | null,
  make: (folder: string) => Promise<void>,
): Promise<void> {
  // Several processes may create it at the same time: the first to finish moves its folder into place.
  const folder = mkdtempSync(`${template}-`);
  try {
    if (user) {
      chownSync(folder, user.uid, user.gid);
      assertReachable(folder, user);
    }
    await make(join(folder, 'data'));
    if (!existsSync(template)) renameSync(join(folder, 'data'), template);
  } catch (error) {
    if (!existsSync(template)) throw error;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

let ours: string | null = null;

/** Outside of a test run: templates of this process only. */
function ourTemplates(): string {
  if (ours !== null) return ours;
  const folder = mkdtempSync(join(tmpdir(), 'doorbuster-templates-'));
  chmodSync(folder, 0o711);
  ours = folder;
  const remove = (): void => {
    ours = null;
    rmSync(folder, { recursive: true, force: true });
  };
  const started: Started = {
    end: async () => {
      forget(started);
      remove();
    },
    endNow: remove,
  };
  remember(started);
  return folder;
}
