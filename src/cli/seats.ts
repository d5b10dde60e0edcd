import { readFileSync, statSync } from 'node:fs';
import { messageOf, TerminalError } from '../base/errors.ts';
import { nearest } from '../base/nearest.ts';
import { type Command, optionHelp, parseArguments, UsageError } from './command.ts';
import { importSeatingPlan, type Note, parseSeatingPlan, type SaleDraft, type SeatsImport } from './seating-plan.ts';

/** A plan of 100 000 seats has about 20 MB. */
const FILE_BYTES_MAX = 32 * 2 ** 20;
const TOO_LARGE = `is larger than ${FILE_BYTES_MAX / 2 ** 20} MiB: it is no seating plan`;
const STDIN = '-';

export const seats: Command = {
  help: `Usage: doorbuster seats import <file> [--json]

Reads a seating plan in the JSON format of pretix (zones, rows, seats, categories) and prints the definition of a sale that
has these seats, one item for each category. What you have to fill in is null: prices and times. Then it is the body of
POST /v1/sales.

The definition goes to stdout. What was understood of the plan, and what was not, goes to stderr:
  doorbuster seats import plan.json > sale.json
The file - is standard input.

Best available seats are given out in the order of the rows: put the best rows first.

${optionHelp([['--json', 'print report and definition to stdout, as one JSON object']])}

Exit code: 0 a definition was printed; 1 the file is not a seating plan or has no seats, or the server would refuse the
definition: the report says why; 2 wrong usage.`,
  async run(args) {
    const { flags, names } = parseArguments(args, { json: { type: 'boolean' } });
    const file = fileOf(names);
    const result = await importFile(file);
    if (flags.json === true) console.log(JSON.stringify(result));
    else {
      console.error(reportOf(nameOf(file), result));
      console.log(definitionText(result.sale));
    }
    return result.faults.length === 0 ? 0 : 1;
  },
};

function fileOf([action, file, ...more]: readonly string[]): string {
  if (action !== undefined && action !== 'import') {
    const near = nearest(action, ['import']);
    throw new UsageError(
      `there is no "seats ${action}"; ${near ? `is it seats ${near}?` : '--help says what there is'}`,
    );
  }
  if (file === undefined) throw new UsageError('name the seating plan: doorbuster seats import <file>');
  if (more.length > 0) throw new UsageError(`one file at a time: ${more[0]} is too many`);
  return file;
}

async function importFile(file: string): Promise<SeatsImport> {
  try {
    return importSeatingPlan(parseSeatingPlan(textOf(file === STDIN ? await stdinBytes() : bytesOf(file))));
  } catch (error) {
    if (!(error instanceof TerminalError)) throw error;
    throw new TerminalError(error.code, `${nameOf(file)} ${error.message}`);
  }
}

const WHY_UNREADABLE: Record<string, string> = {
  ENOENT: 'does not exist',
  ENOTDIR: 'does not exist',
  EISDIR: 'is a folder',
  EACCES: 'may not be read by this user',
  EPERM: 'may not be read by this user',
};

function nameOf(file: string): string {
  return file === STDIN ? 'standard input' : file;
}

async function stdinBytes(): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of process.stdin as AsyncIterable<Buffer>) {
    size += chunk.length;
    if (size > FILE_BYTES_MAX) throw unreadable(TOO_LARGE);
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

function bytesOf(file: string): Buffer {
  try {
    const { size } = statSync(file);
    if (size > FILE_BYTES_MAX) throw unreadable(TOO_LARGE);
    return readFileSync(file);
  } catch (error) {
    if (error instanceof TerminalError) throw error;
    const code = (error as NodeJS.ErrnoException).code ?? '';
    throw unreadable(WHY_UNREADABLE[code] ?? `cannot be read: ${messageOf(error)}`);
  }
}

function textOf(bytes: Buffer): string {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch {
    throw unreadable('is not UTF-8 text');
  }
}

function unreadable(why: string): TerminalError {
  return new TerminalError('plan_unreadable', why);
}

export function reportOf(file: string, { plan, seats, leftOut, sections, items, notes, faults }: SeatsImport): string {
  const rows = sections.reduce((sum, section) => sum + section.rows, 0);
  return [
    `${plan || file}: ${seats} seats in ${rows} rows${leftOut === 0 ? '' : `; ${leftOut} seats are left out`}`,
    '',
    ...table([['section', 'rows', 'seats'], ...sections.map((one) => [one.section, one.rows, one.seats])]),
    '',
    ...table([
      ['item', 'rows', 'seats', 'category'],
      ...items.map((one) => [one.item, one.rows, one.seats, one.category || '(none)']),
    ]),
    ...headed('Please check:', notes.flatMap(noteLines)),
    ...headed(
      'The server would refuse this definition:',
      faults.map(({ path, message }) => `${path} ${message}`),
    ),
    '',
    'Fill in what is null: opensAt, closesAt and each price.',
    '',
  ].join('\n');
}

function headed(head: string, lines: readonly string[]): string[] {
  return lines.length === 0 ? [] : ['', head, ...lines.map((line) => `  ${line}`)];
}

function noteLines({ says, count, examples }: Note): string[] {
  const more = count > examples.length ? ', …' : '';
  return [`${String(count).padStart(5)}  ${says}`, `       ${examples.join(', ')}${more}`];
}

/** Text to the left, numbers to the right. */
function table(rows: readonly (readonly (string | number)[])[]): string[] {
  const widths = rows[0]!.map((_, column) =>
    rows.reduce((width, row) => Math.max(width, String(row[column]).length), 0),
  );
  const isNumber = rows[0]!.map((_, column) => typeof rows.at(-1)![column] === 'number');
  return rows.map((row) =>
    row
      .map((cell, column) => {
        const text = String(cell);
        return isNumber[column] ? text.padStart(widths[column]!) : text.padEnd(widths[column]!);
      })
      .join('  ')
      .trimEnd(),
  );
}

/** JSON with one line for each row, so that it can be read and edited. */
export function definitionText({ items, ...sale }: SaleDraft): string {
  const fields = (of: object, indent: string): string =>
    Object.entries(of)
      .map(([name, value]) => `${indent}${JSON.stringify(name)}: ${spaced(value)},\n`)
      .join('');
  const blocks = items.map(({ seats, ...item }) => {
    const rows = seats.map((row) => `        ${spaced(row)}`).join(',\n');
    return `    {\n${fields(item, '      ')}      "seats": [\n${rows}\n      ]\n    }`;
  });
  return `{\n${fields(sale, '  ')}  "items": [\n${blocks.join(',\n')}\n  ]\n}`;
}

/** One line of JSON with blanks. */
function spaced(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(spaced).join(', ')}]`;
  if (value === null || typeof value !== 'object') return JSON.stringify(value);
  const members = Object.entries(value).map(([name, own]) => `${JSON.stringify(name)}: ${spaced(own)}`);
  return `{ ${members.join(', ')} }`;
}
