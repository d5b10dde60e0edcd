import { type Block, blocksOf, markdownIn } from './pages.ts';
import { PROGRAMS } from './programs.ts';

/**
 * Every fenced block of the pages that people copy from is either run by a test or named here with the reason why not. A new
 * block that is neither fails `test/unit/docs.test.ts`.
 */
export const COPIED_FROM = ['README.md', 'examples/README.md', ...markdownIn('docs/guides')];

/** Translations. A test checks that their blocks are the same, so that each needs to run only once. */
export const TWINS: Record<string, string> = {
  'README.zh-CN.md': 'README.md',
  'docs/zh-CN/guides/locks.md': 'docs/guides/locks.md',
  'docs/zh-CN/reference/errors.md': 'docs/reference/errors.md',
};

/** Answers, output and diagrams: nobody types them. */
const SHOWN = ['text', 'json', 'http', 'mermaid'];

export type SessionName =
  | 'first hour'
  | 'examples'
  | 'operate'
  | 'requests'
  | 'several machines'
  | 'brokers'
  | 'dead letters';

/** Which shell session runs the `sh` blocks below a heading; the first matching row counts. */
const SESSIONS: readonly (readonly [page: string, heading: RegExp, session: SessionName])[] = [
  ['README.md', /^(?!Tests$|On several machines$)/, 'first hour'],
  ['README.md', /^On several machines$/, 'several machines'],
  ['docs/guides/operate.md', /./, 'operate'],
  ['docs/guides/payments.md', /./, 'requests'],
  ['docs/guides/webhooks.md', /./, 'requests'],
  ['docs/guides/accounts.md', /./, 'requests'],
  ['docs/guides/likes.md', /./, 'requests'],
  ['docs/guides/seats.md', /./, 'requests'],
  ['docs/guides/distributed.md', /^Dead letters$/, 'dead letters'],
  ['docs/guides/distributed.md', /./, 'several machines'],
  ['docs/guides/pipes.md', /^(?:Rights|Start|Look|Move a live shop)$/, 'brokers'],
  ['docs/guides/embed.md', /^Install$/, 'first hour'],
  ['examples/README.md', /./, 'examples'],
];

/** Blocks that no test runs. */
export const NOT_RUN: Record<string, string> = {
  ...Object.fromEntries(
    ['sql', 'pgsql', 'redis'].map((kind) => [
      `docs/guides/distributed.md: Rights [${kind}]`,
      'test/integration/rights.test.ts gives it to real servers',
    ]),
  ),
  'README.md: Tests [sh]': 'it is what runs the tests, these too; `.ci/run` is tested to end with it',
};

/** Single commands that no session runs, wherever they are printed. */
export const COMMANDS_ELSEWHERE: readonly { command: RegExp; reason: string }[] = [
  {
    command: /^\(?(?:npm (?:install|i|ci|pack|publish|run pack:\w+)|git clone|cd) /,
    reason: 'installing needs the network or a tarball: test/integration/package.test.ts packs and installs',
  },
  { command: /^docker /, reason: 'needs Docker; the addresses of ops/compose.yml are tested against the docs' },
  {
    command: /^kafka-[\w-]+\.sh /,
    reason:
      'scripts of the Kafka distribution, which the tests do without: theirs comes from Maven, and has no scripts',
  },
];

export function sessionOf({ page, heading }: Block): SessionName | null {
  return SESSIONS.find(([of, pattern]) => of === page && pattern.test(heading))?.[2] ?? null;
}

/** A transcript: commands after a prompt, and what they print. */
export function isTranscript({ language, code }: Block): boolean {
  return language === '' && /^\$ /m.test(code);
}

export function blocksOfSession(session: SessionName): Block[] {
  return COPIED_FROM.flatMap(blocksOf)
    .filter((block) => block.language === 'sh' || isTranscript(block))
    .filter((block) => sessionOf(block) === session && NOT_RUN[block.name] === undefined)
    .map((block) => (isTranscript(block) ? { ...block, code: typed(block.code) } : block));
}

function typed(transcript: string): string {
  return [...transcript.matchAll(/^\$ (.*\n)/gm)].map(([, command]) => command!).join('');
}

/** Blocks that are neither run nor named, and names of blocks that no longer exist. */
export function gaps(blocks = COPIED_FROM.flatMap(blocksOf)): { untested: string[]; stale: string[] } {
  const untested = blocks.filter((block) => !isAccountedFor(block)).map(({ name }) => name);
  const names = new Set(blocks.map(({ name }) => name));
  const stale = [...Object.keys(NOT_RUN), ...Object.keys(PROGRAMS)].filter((name) => !names.has(name));
  return { untested, stale };
}

function isAccountedFor(block: Block): boolean {
  const { language, name } = block;
  if (NOT_RUN[name] !== undefined || SHOWN.includes(language)) return true;
  if (language === 'sh' || isTranscript(block)) return sessionOf(block) !== null;
  if (['js', 'ts', 'sql'].includes(language)) return PROGRAMS[name] !== undefined;
  return language === '';
}
