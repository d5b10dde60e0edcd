import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { ROOT } from '../server.ts';

/** Reads the Markdown pages: their headings, and their fenced blocks by name. */

export function read(file: string): string {
  return readFileSync(join(ROOT, file), 'utf8');
}

export function markdownIn(folder: string): string[] {
  return readdirSync(join(ROOT, folder), { recursive: true, encoding: 'utf8' })
    .filter((file) => file.endsWith('.md'))
    .map((file) => `${folder}/${file}`)
    .sort();
}

export interface Block {
  page: string;
  heading: string;
  /** The page, the heading above it, and its language: the second of a language below one heading is `[ts 2]`. */
  name: string;
  /** What follows the backticks: `sh`, `ts`, …, or nothing. */
  language: string;
  code: string;
  /** The line of its first line of code. */
  line: number;
}

const FENCE = /^(`{3,})(\w*)[^`]*$/;

/** Every fenced block of a page, in order. */
export function blocksOf(page: string): Block[] {
  const blocks: Block[] = [];
  const seen = new Map<string, number>();
  let heading = '';
  let open: { fence: string; language: string; line: number; lines: string[] } | null = null;
  for (const [index, line] of read(page).split('\n').entries()) {
    if (open !== null) {
      if (line.trim() !== open.fence) {
        open.lines.push(line);
        continue;
      }
      const kind = `${page}: ${heading} [${open.language}`;
      const count = (seen.get(kind) ?? 0) + 1;
      seen.set(kind, count);
      const name = count === 1 ? `${kind}]` : `${kind} ${count}]`;
      blocks.push({
        page,
        heading,
        name,
        language: open.language,
        code: `${open.lines.join('\n')}\n`,
        line: open.line,
      });
      open = null;
      continue;
    }
    const fence = FENCE.exec(line);
    if (fence) open = { fence: fence[1]!, language: fence[2]!, line: index + 2, lines: [] };
    else if (/^#+ /.test(line)) heading = line.replace(/^#+ /, '');
  }
  if (open !== null) throw new Error(`${page}: the block of line ${open.line} does not end`);
  return blocks;
}

export function withoutCode(markdown: string): string {
  return markdown.replace(/^```.*?^```$/gms, '');
}

export function headings(markdown: string): string[] {
  return [...withoutCode(markdown).matchAll(/^(#+ .*)$/gm)].map(([, heading]) => heading!);
}
