import { spawn, spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { delimiter, dirname, join } from 'node:path';
import type { Block } from './pages.ts';

/**
 * Runs the `sh` blocks of a page in one shell, statement by statement, as a reader would who copies them into terminals. A
 * server runs on until another block starts one; everything else must exit with 0, and each request must be answered with a
 * status below 400.
 *
 * Three things differ from what is printed. Addresses and folders are those of the test (`replaced`). `NAME=…` is a placeholder
 * that the reader fills in: with a value of `fill`, or with any secret. And the shell copies ids that the reader would copy from
 * an answer (`$ORDER`; in the demo `$SALE` and `$ADMIN_KEY`).
 */
export interface Session {
  folder: string;
  blocks: readonly Block[];
  /** Texts in the blocks and their replacements, applied in this order. */
  replaced?: readonly (readonly [string | RegExp, string])[];
  fill?: Record<string, string>;
  env?: Record<string, string>;
  /** Folders that come first in the PATH. */
  path?: readonly string[];
  /** Statements that are not run here. */
  left?: readonly RegExp[];
  /** For the whole session; less than the test's own limit. */
  withinMs?: number;
}

export interface Told {
  statement: string;
  output: string;
}

const READY_WITHIN_MS = 20_000;
const SESSION_WITHIN_MS = 50_000;
const MARK = '@@@';
const SERVES = /(?:^|[\s/])doorbuster(?:\.js)? (?:serve|worker)\b|^npm start\b/;

export async function runShell(session: Session): Promise<Told[]> {
  const statements: string[] = [];
  const lines = [PRELUDE];
  for (const block of session.blocks) {
    const inBlock = statementsOf(block).filter((one) => !session.left?.some((pattern) => pattern.test(bare(one))));
    if (inBlock.some((one) => SERVES.test(bare(one)))) lines.push('end_servers');
    for (const printed of inBlock) {
      const statement = placed(printed, session);
      const serves = SERVES.test(bare(statement));
      lines.push(`begin ${statements.length}`);
      // The closing brace is on its own line, because a statement may end in a comment. Every server runs in the background, as
      // the page may tell the reader to do.
      if (serves)
        lines.push(`{ ${statement.replace(/ *&$/, '')}\n} >"$HERE/.served" 2>&1 &`, `serving ${portOf(statement)}`);
      else lines.push(statement, 'ended $?');
      statements.push(printed);
    }
  }
  lines.push('end_servers');
  writeFileSync(join(session.folder, '.session.sh'), `${lines.join('\n')}\n`);
  const { code, output } = await bash(session);
  const told = output
    .split(new RegExp(`^${MARK}`, 'm'))
    .slice(1)
    .map((part) => {
      const [number, ...rest] = part.split('\n');
      return { statement: statements[Number(number)]!, output: rest.join('\n') };
    });
  if (code !== 0) {
    const last = told.at(-1);
    throw new Error(
      `as printed this fails (${code}):\n${last?.statement ?? '(before the first)'}\n\n${last?.output ?? output}`,
    );
  }
  return told;
}

/** Splits a block into statements: joins lines until bash considers them complete. */
export function statementsOf(block: Block): string[] {
  const statements: string[] = [];
  let pending = '';
  for (const line of block.code.split('\n')) {
    pending = pending === '' ? line : `${pending}\n${line}`;
    if (bare(pending) === '') {
      pending = '';
      continue;
    }
    if (pending.endsWith('\\')) continue;
    const { status, stderr } = spawnSync('bash', ['-n', '-c', pending], { encoding: 'utf8' });
    // For an open here-document bash only warns.
    if (status !== 0 || stderr !== '') continue;
    statements.push(pending);
    pending = '';
  }
  if (pending !== '') throw new Error(`${block.name}: bash cannot read this to its end:\n${pending}`);
  return statements;
}

/** Without leading comments and variables (`PIPE_URL=… npx …`). */
function bare(statement: string): string {
  return statement
    .replace(/^(?:\s*#.*\n?)+/, '')
    .replace(/^(?:\w+=\S+ +)+(?=\S)/, '')
    .trim();
}

function placed(statement: string, { replaced = [], fill = {} }: Session): string {
  const filled = statement.replace(/\b([A-Z_]+)=…/g, (_, name: string) => `${name}='${fill[name] ?? SECRET}'`);
  return replaced.reduce(
    (text, [from, to]) => text.replaceAll(from instanceof RegExp ? from : String(from), to),
    filled,
  );
}

const SECRET = 'a-secret-that-the-reader-has-made-up-1234';

function portOf(statement: string): string {
  if (/\bworker\b/.test(bare(statement)) && !/\bserve\b/.test(statement)) return 'worker';
  return /--port[ =](\d+)/.exec(statement)?.[1] ?? '"$PORT"';
}

const PRELUDE = `
# Each job gets a process group of its own, so that what npx started ends, too.
set -m -u -o pipefail
HERE=$PWD
SERVERS=()
begin() {
  echo "${MARK}$1"
  # What a reader copies from what was printed.
  if [ -s .order ] && [ -z "\${ORDER-}" ]; then ORDER=$(cat .order); fi
  if [ -s .served ]; then
    [ -n "\${SALE-}" ] || SALE=$(sed -n 's/^ *Sale *\\([0-9][0-9]*\\):.*/\\1/p' .served)
    [ -n "\${ADMIN_KEY-}" ] || ADMIN_KEY=$(sed -n 's/^ *Admin *\\([^ ]*\\) *$/\\1/p' .served)
  fi
}
ended() {
  if [ "$1" -ne 0 ]; then echo "(exit code $1)"; stop 1; fi
}
stop() {
  end_servers
  exit "$1"
}
trap 'stop 143' TERM
end_servers() {
  local pid
  # Not in order: that a server ends in order is tested elsewhere, and a killed one loses nothing (P3).
  for pid in \${SERVERS[@]+"\${SERVERS[@]}"}; do kill -KILL -- "-$pid" 2>/dev/null; wait "$pid" 2>/dev/null; done
  SERVERS=()
}
# serving PORT|worker: waits until what was just started is there.
serving() {
  local pid=$! tries
  SERVERS+=("$pid")
  for tries in $(seq ${READY_WITHIN_MS / 50}); do
    if [ "$1" = worker ]; then grep -q 'worker started' .served && break
    elif command curl -sf -o /dev/null "http://127.0.0.1:$1/readyz"; then break; fi
    if ! kill -0 "$pid" 2>/dev/null || [ "$tries" -eq ${READY_WITHIN_MS / 50} ]; then cat .served; echo "(it does not serve)"; stop 1; fi
    sleep 0.05
  done
  cat .served
}
# As curl, but an answer from 400 up is a failure, and a stream is read for a moment.
curl() {
  local answer code=0 argument streams=
  for argument in "$@"; do case $argument in -*N*|--no-buffer) streams=1 ;; esac; done
  if [ -n "$streams" ]; then
    answer=$(command curl --fail-with-body --max-time 0.5 "$@") || code=$?
    if [ "$code" -eq 28 ] && [ -n "$answer" ]; then code=0; fi
  else
    answer=$(command curl --fail-with-body --max-time 20 "$@") || code=$?
  fi
  case $answer in *'"saleId":"'*) sed -n 's/^{"id":"\\([0-9]*\\)".*/\\1/p' <<<"$answer" >"$HERE/.order" ;; esac
  printf '%s\\n' "$answer"
  return "$code"
}
`;

function bash({
  folder,
  env,
  path: first = [],
  withinMs = SESSION_WITHIN_MS,
}: Session): Promise<{ code: number | null; output: string }> {
  // A reader's PATH does not contain node_modules/.bin: npm adds that for its own scripts only.
  const theirs = process.env.PATH!.split(delimiter).filter((entry) => !entry.includes('node_modules'));
  const path = [...first, dirname(process.execPath), ...theirs].join(delimiter);
  const child = spawn('bash', ['.session.sh'], {
    cwd: folder,
    env: { ...cleanEnvironment(), PATH: path, LOG_LEVEL: 'warn', ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.on('data', (chunk: Buffer) => {
      output += chunk;
    });
  }
  // On SIGTERM the shell ends what it started.
  const late = setTimeout(() => {
    output += `\n(not done within ${withinMs} ms)`;
    child.kill('SIGTERM');
  }, withinMs);
  return new Promise((resolve) =>
    child.on('close', (code) => {
      clearTimeout(late);
      resolve({ code, output });
    }),
  );
}

/** A reader's environment: without variables of the test run's npm, and without our settings. */
function cleanEnvironment(): NodeJS.ProcessEnv {
  return Object.fromEntries(
    Object.entries(process.env).filter(([name]) => !/^(?:npm_|VITEST|NODE_|DOORBUSTER_|TEST_|INIT_CWD)/i.test(name)),
  );
}
