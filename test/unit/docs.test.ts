import { existsSync, readdirSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { SETTINGS } from '../../src/base/config.ts';
import { unavailable } from '../../src/base/errors.ts';
import { systemRuntime } from '../../src/base/runtime.ts';
import { COMMAND_NAMES, main } from '../../src/cli/main.ts';
import { HTTP_DEFAULTS } from '../../src/http/context.ts';
import { PROBLEMS } from '../../src/http/problem.ts';
import { createServer } from '../../src/http/server.ts';
import { COMMANDS_ELSEWHERE, COPIED_FROM, gaps, NOT_RUN, TWINS } from '../support/docs/inventory.ts';
import { blocksOf, headings, markdownIn, read, withoutCode } from '../support/docs/pages.ts';
import { ROOT } from '../support/server.ts';

/** Compares the docs with the code, in both directions. */

const PAGES = [
  'README.md',
  'README.zh-CN.md',
  'CONTRIBUTING.md',
  'CHANGELOG.md',
  'examples/README.md',
  'bench/README.md',
  ...markdownIn('docs'),
];

/** Cells of the table rows whose first cell is code, without its backticks. */
function rows(markdown: string): string[][] {
  return markdown
    .split('\n')
    .filter((line) => line.startsWith('| `'))
    .map((line) =>
      line
        .slice(1, -1)
        .split(' | ')
        .map((cell) => cell.trim().replace(/^`([^`]*)`$/, '$1')),
    );
}

function codeBlocks(markdown: string): string[] {
  return [...markdown.matchAll(/^```(\w*)\n(.*?)^```$/gms)].map(([block]) => block);
}

/** The anchor that a Git host generates for a heading. */
function anchorOf(heading: string): string {
  return heading
    .replace(/^#+ /, '')
    .toLowerCase()
    .replace(/[^\p{L}\p{N} _-]/gu, '')
    .replaceAll(' ', '-');
}

describe('docs/reference', () => {
  afterEach(() => void vi.restoreAllMocks());

  it('errors.md has every code with its status, and no other', () => {
    const [table] = read('docs/reference/errors.md').split('\n## ');
    const documented = rows(table!).map(([code, status]) => [code, Number(status)]);
    const known = Object.entries(PROBLEMS).map(([code, { status }]) => [code, status]);
    expect(documented).toEqual(known);
  });

  it('config.md has every setting with its flag and default, and no other', () => {
    const [table] = read('docs/reference/config.md').split('\n## ');
    const documented = rows(table!).map(([env, flag, fallback]) => ({ env, flag, fallback }));
    const defaultOf = (fallback: string | null): string => (fallback === null ? 'required' : fallback || 'none');
    const known = Object.values(SETTINGS).map(({ env, flag, fallback }) => ({
      env,
      flag: `--${flag}`,
      fallback: defaultOf(fallback),
    }));
    expect(documented).toEqual(known);
  });

  it('cli.md has every command with the help it prints, and no other', async () => {
    const page = read('docs/reference/cli.md');
    const documented = headings(page)
      .filter((heading) => heading.startsWith('## doorbuster '))
      .map((heading) => heading.slice('## doorbuster '.length));
    expect(documented).toEqual(COMMAND_NAMES);
    const print = vi.spyOn(console, 'log').mockImplementation(() => {});
    for (const args of [['--help'], ...COMMAND_NAMES.map((name) => [name, '--help'])]) {
      expect(await main(args)).toBe(0);
      expect(codeBlocks(page)).toContain(`\`\`\`\n${print.mock.lastCall![0]}\n\`\`\``);
    }
  });

  it('api.md has every route of /openapi.json, and no other', async () => {
    const shop = {
      get: () => {
        throw unavailable('there is none');
      },
      readiness: () => ({ status: 'unavailable' as const, parts: { gate: '', pipe: '', ledger: '' } }),
      closing: () => false,
      blockedMs: () => 0,
    };
    const http = {
      ...HTTP_DEFAULTS,
      demo: { secret: 'a secret of the demo', hosts: [] },
      accounts: true,
      authSecrets: ['secret'],
      adminKeys: [{ name: 'admin', key: 'key' }],
    };
    const app = await createServer({ shop, http, runtime: systemRuntime(), trustProxy: false });
    const { paths } = (await app.inject('/openapi.json')).json<{ paths: Record<string, Record<string, unknown>> }>();
    await app.close();
    const known = Object.entries(paths).flatMap(([path, methods]) =>
      Object.keys(methods).map((method) => `${method.toUpperCase()} ${path.replace(/\{(\w+)\}/g, ':$1')}`),
    );
    const documented = rows(read('docs/reference/api.md')).map(([route]) => route!);
    expect(documented.toSorted()).toEqual(known.toSorted());
  });
});

it('docs/internals/dependencies.md has every dependency, and no other', () => {
  const { dependencies, devDependencies } = JSON.parse(read('package.json')) as Record<string, Record<string, string>>;
  const sections = read('docs/internals/dependencies.md').split('\n## ');
  const named = (section: string): string[] =>
    rows(sections.find((one) => one.startsWith(section))!).flatMap(([names]) =>
      names!.split(', ').map((name) => name.replaceAll('`', '').split(' ')[0]!),
    );
  expect(named('At run time').toSorted()).toEqual(Object.keys(dependencies!).toSorted());
  expect(named('For development').toSorted()).toEqual(Object.keys(devDependencies!).toSorted());
});

describe.each(PAGES)('%s', (page) => {
  const text = read(page);

  it('links to what is there', () => {
    const broken: string[] = [];
    for (const [, target] of withoutCode(text).matchAll(/\]\(([^)\s]+)\)/g)) {
      if (/^[a-z]+:/.test(target!)) continue;
      const [path, anchor] = target!.split('#') as [string, string?];
      const file = path === '' ? page : relative(ROOT, join(ROOT, dirname(page), path));
      if (!existsSync(join(ROOT, file))) broken.push(target!);
      else if (anchor !== undefined && !headings(read(file)).map(anchorOf).includes(anchor)) broken.push(target!);
    }
    expect(broken).toEqual([]);
  });

  it('names files that are there', () => {
    const named = [...text.matchAll(/`((?:src|test|docs|bench|bin|scripts|examples)\/[^`\s…]*)`/g)].map(
      ([, name]) => name!,
    );
    // Files that a run creates do not exist in a fresh clone.
    const made = read('.gitignore').split('\n');
    expect(named.filter((name) => !existsSync(join(ROOT, name)) && !made.includes(name))).toEqual([]);
  });

  it('says nothing of the machine it was written on', () => {
    expect(text).not.toMatch(/\/(?:work|home|root|tmp)\//);
  });
});

it('docs/guarantees.md names tests that are there', () => {
  const missing: string[] = [];
  const cited = read('docs/guarantees.md').matchAll(/^- `(test\/[^`]+)`: (.*)$/gm);
  for (const [, file, names] of cited) {
    const source = read(file!);
    for (const [, name] of names!.matchAll(/“([^”]+)”/g)) if (!source.includes(name!)) missing.push(`${file}: ${name}`);
  }
  expect(missing).toEqual([]);
});

it('docs/guarantees.md has every promise, and a test for each that is in force', () => {
  const sections = read('docs/guarantees.md').split(/^## /m).slice(1);
  const promises = sections.map((section) => section.slice(0, section.indexOf('.')));
  expect(promises).toEqual(Array.from({ length: 10 }, (_, at) => `P${at + 1}`));
  for (const [at, section] of sections.entries()) {
    const built = !/^P\d+\. [^\n]*\n\nNot built yet\./.test(section);
    expect([promises[at], built]).toEqual([promises[at], /^- `test\//m.test(section)]);
  }
});

describe('the two READMEs', () => {
  const [english, chinese] = [read('README.md'), read('README.zh-CN.md')];

  it('have the same rows in the table of promises', () => {
    const promises = (text: string): string[] => text.match(/^\| P\d+ /gm) ?? [];
    expect(promises(chinese)).toEqual(promises(english));
    expect(promises(english)).toHaveLength(10);
  });

  it('begin, in Chinese, with the words that people search for, and lead to Chinese pages where there are some', () => {
    const [opening] = chinese.slice(chinese.indexOf('\n')).trim().split('\n\n');
    for (const word of ['秒杀', '抢券', '抢票引擎', '不超卖', '一人一单', '已接受的订单不丢'])
      expect(opening).toContain(word);
    for (const [translation, original] of Object.entries(TWINS)) {
      if (original === 'README.md') continue;
      expect(chinese).toContain(`(${translation})`);
      expect(chinese).not.toContain(`(${original}`);
    }
  });

  it('name the test command that CI runs', () => {
    expect(codeBlocks(english)).toContain('```sh\nnpm test\n```');
    expect(read('.ci/run').trim().split('\n').at(-1)).toBe('npm run verify');
    expect(read('scripts/verify.mjs')).toContain("'npm', ['test', ");
  });
});

describe.each(Object.entries(TWINS))('%s, the translation of %s', (translation, original) => {
  const [theirs, ours] = [read(translation), read(original)];

  it('has the same headings, one for one, and the same code', () => {
    const levels = (text: string): number[] => headings(text).map((heading) => heading.indexOf(' '));
    expect(levels(theirs)).toEqual(levels(ours));
    expect(codeBlocks(theirs)).toEqual(codeBlocks(ours));
  });
});

it.each(Object.entries(TWINS).filter(([translation]) => translation.startsWith('docs/')))(
  '%s names in each section the same codes, options and functions as %s, in tables with as many rows',
  (translation, original) => {
    const sections = (page: string): string[] => withoutCode(read(page)).split(/^#+ /m);
    // Code is not translated.
    const named = (section: string): string[] => [...new Set(section.match(/`[^`\n]+`/g))].sort();
    expect(sections(translation).map(named)).toEqual(sections(original).map(named));
    const rowsOf = (section: string): number => section.match(/^\|/gm)?.length ?? 0;
    expect(sections(translation).map(rowsOf)).toEqual(sections(original).map(rowsOf));
  },
);

describe('what people copy', () => {
  it('is run by a test, or named with the reason why not: every block of README, guides and examples', () => {
    expect(gaps()).toEqual({ untested: [], stale: [] });
    for (const reason of [...Object.values(NOT_RUN), ...COMMANDS_ELSEWHERE.map((one) => one.reason)]) {
      expect(reason).toMatch(/\w+ \w+ \w+/);
    }
  });

  it('a block that nobody runs is noticed', () => {
    const [block] = blocksOf('docs/guides/locks.md');
    expect(block).toMatchObject({ name: 'docs/guides/locks.md: Locks [ts]', heading: 'Locks', line: 6 });
    expect(gaps([{ ...block!, name: 'docs/guides/locks.md: New [ts]' }]).untested).toEqual([
      'docs/guides/locks.md: New [ts]',
    ]);
    expect(gaps([{ ...block!, page: 'docs/guides/new.md', name: 'new', language: 'sh' }]).untested).toEqual(['new']);
    expect(gaps([{ ...block!, name: 'new', language: 'python' }]).untested).toEqual(['new']);
  });

  it('calls doorbuster by commands and flags that there are, also inside a sentence', async () => {
    const known = new Map<string, string>();
    const print = vi.spyOn(console, 'log').mockImplementation(() => {});
    for (const name of COMMAND_NAMES) {
      await main([name, '--help']);
      known.set(name, String(print.mock.lastCall![0]));
    }
    print.mockRestore();
    const wrong: string[] = [];
    for (const page of [...COPIED_FROM, 'README.zh-CN.md', 'CONTRIBUTING.md', ...markdownIn('docs')]) {
      for (const [line, before, command, rest] of read(page).matchAll(
        /(npx |\.bin\/|`)doorbuster ([a-z]+)\b([^`\n]*)/g,
      )) {
        const help = known.get(command!);
        // Only a look-alike in backticks is allowed: `doorbuster sends <pid>` is a connection's name.
        if (help === undefined && before !== '`') wrong.push(`${page}: ${line}`);
        if (help === undefined) continue;
        for (const [flag] of rest!.split(' #')[0]!.matchAll(/(?<= )--[a-z-]+/g)) {
          if (!help.includes(flag)) wrong.push(`${page}: ${line}: ${flag}`);
        }
      }
    }
    expect(wrong).toEqual([]);
  });

  it('names databases and passwords as ops/compose.yml makes them', () => {
    const made = [...read('ops/compose.yml').matchAll(/^#.*?((?:redis|mysql|postgres|amqp|kafka):\/\/\S+)/gm)].map(
      ([, url]) => url!,
    );
    expect(made.length).toBeGreaterThan(4);
    const other: string[] = [];
    for (const page of COPIED_FROM) {
      for (const { name, code } of blocksOf(page)) {
        for (const [url] of code.matchAll(/\b(?:redis|mysql|postgres):\/\/[^\s'"…]*@?127\.0\.0\.1:\d+[^\s'"]*/g)) {
          if (!made.includes(url)) other.push(`${name}: ${url}`);
        }
      }
    }
    expect(other).toEqual([]);
  });
});

it('no file names a document that is not in the repository', () => {
  const skipped = new Set(['node_modules', '.git', 'dist', 'results', 'data']);
  const files = (folder: string): string[] =>
    readdirSync(join(ROOT, folder), { withFileTypes: true }).flatMap((entry) => {
      const path = folder === '' ? entry.name : `${folder}/${entry.name}`;
      if (skipped.has(entry.name) || entry.isSymbolicLink()) return [];
      return entry.isDirectory() ? files(path) : [path];
    });
  const text = /\.(?:[cm]?[jt]s|md|lua|sql|ya?ml|json|html|css)$/;
  // Documents that are not part of the repository.
  const elsewhere = /\bsources\/0|\b(?:DESIGN|LESSONS|STYLE|API)\.md\b/;
  const naming = files('').filter(
    (file) => text.test(file) && file !== 'test/unit/docs.test.ts' && elsewhere.test(read(file)),
  );
  expect(naming).toEqual([]);
});
