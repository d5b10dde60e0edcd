import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { SETTINGS } from '../../src/base/config.ts';
import { unavailable } from '../../src/base/errors.ts';
import { systemRuntime } from '../../src/base/runtime.ts';
import { COMMAND_NAMES, main } from '../../src/cli/main.ts';
import { HTTP_DEFAULTS } from '../../src/http/context.ts';
import { PROBLEMS } from '../../src/http/problem.ts';
import { createServer } from '../../src/http/server.ts';

/** The docs against the code: what a table says must be so, and what is so must be in the table. */

const ROOT = fileURLToPath(new URL('../../', import.meta.url));
const read = (file: string): string => readFileSync(join(ROOT, file), 'utf8');

const PAGES = ['README.md', 'README.zh-CN.md', 'CONTRIBUTING.md', 'CHANGELOG.md', ...markdownIn('docs')];

function markdownIn(folder: string): string[] {
  return readdirSync(join(ROOT, folder), { recursive: true, encoding: 'utf8' })
    .filter((file) => file.endsWith('.md'))
    .map((file) => `${folder}/${file}`)
    .sort();
}

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

function withoutCode(markdown: string): string {
  return markdown.replace(/^```.*?^```$/gms, '');
}

function headings(markdown: string): string[] {
  return [...withoutCode(markdown).matchAll(/^(#+ .*)$/gm)].map(([, heading]) => heading!);
}

/** As a Git host makes the anchor of a heading. */
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
    expect(named.filter((name) => !existsSync(join(ROOT, name)))).toEqual([]);
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

  it('have the same headings, one for one, and the same code', () => {
    const levels = (text: string): number[] => headings(text).map((heading) => heading.indexOf(' '));
    expect(levels(chinese)).toEqual(levels(english));
    expect(codeBlocks(chinese)).toEqual(codeBlocks(english));
  });

  it('have the same rows in the table of promises', () => {
    const promises = (text: string): string[] => text.match(/^\| P\d+ /gm) ?? [];
    expect(promises(chinese)).toEqual(promises(english));
    expect(promises(english)).toHaveLength(10);
  });

  it('name the test command that CI runs', () => {
    expect(codeBlocks(english)).toContain('```sh\nnpm test\n```');
    expect(read('.ci/run').trim().split('\n').at(-1)).toBe('npm test');
  });

  it('have a library example that runs', async () => {
    const example = codeBlocks(english).find((block) => block.startsWith('```js\nimport { createDoorbuster }'))!;
    const folder = mkdtempSync(join(tmpdir(), 'doorbuster-readme-'));
    const lines: unknown[][] = [];
    const print = vi.spyOn(console, 'log').mockImplementation((...line) => void lines.push(line));
    try {
      const code = example
        .split('\n')
        .slice(1, -1)
        .join('\n')
        .replace("'doorbuster'", `'${pathToFileURL(join(ROOT, 'src/index.ts'))}'`)
        .replace("'./data'", `'${join(folder, 'data')}'`);
      const file = join(folder, 'example.mjs');
      writeFileSync(file, code);
      await import(/* @vite-ignore */ pathToFileURL(file).href);
      expect(lines).toEqual([['alice has voucher-100'], [true, true, 'limit_reached']]);
    } finally {
      print.mockRestore();
      rmSync(folder, { recursive: true, force: true });
    }
  });
});
