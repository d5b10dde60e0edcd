import { parseArgs } from 'node:util';
import { type Config, readConfig, SETTINGS, type Setting, type SettingName } from '../base/config.ts';
import { messageOf } from '../base/errors.ts';
import { nearest } from '../base/nearest.ts';

export interface Command {
  help: string;
  /** Resolves to the exit code. */
  run(args: string[]): Promise<number>;
}

/** A usage error: one line on stderr, exit code 2. */
export class UsageError extends Error {}

type Options = NonNullable<NonNullable<Parameters<typeof parseArgs>[0]>['options']>;

type Flags = Record<string, string | boolean | undefined>;

/** Parses flags. An unknown flag or a stray argument is a UsageError that names it. */
export function parseFlags(args: string[], options: Options): Flags {
  return parsed(args, options, false).flags;
}

/** The same for a command that takes more than flags, such as files: `names`, in their order. */
export function parseArguments(args: string[], options: Options): { flags: Flags; names: string[] } {
  return parsed(args, options, true);
}

function parsed(args: string[], options: Options, allowPositionals: boolean): { flags: Flags; names: string[] } {
  try {
    const { values, positionals } = parseArgs({ args, options, strict: true, allowPositionals });
    return { flags: values as Flags, names: positionals };
  } catch (error) {
    // The first sentence says what is wrong; the rest gives advice about parseArgs.
    const said = messageOf(error).split(/\.\s/)[0]!.replaceAll('\n', ' ');
    const [, flag = ''] = /'(?:-\w, )?--([\w-]+)/.exec(said) ?? [];
    if (/argument (missing|is ambiguous)$/.test(said)) throw new UsageError(`--${flag} needs a value`);
    const [, stray] = /^Unexpected argument '(.*)'/.exec(said) ?? [];
    if (stray !== undefined) throw new UsageError(`takes no argument "${stray}"; --help lists the options`);
    if (!said.startsWith('Unknown option')) throw new UsageError(said);
    const near = nearest(flag, Object.keys(options));
    throw new UsageError(`there is no option --${flag}; ${near === null ? '--help lists them' : `is it --${near}?`}`);
  }
}

function settings(names: readonly SettingName[]): Setting<unknown>[] {
  return names.map((name) => SETTINGS[name] as Setting<unknown>).filter(({ flag }) => flag !== null);
}

/** The flags of these settings; a command adds its own. */
export function settingFlags(names: readonly SettingName[]): Options {
  return Object.fromEntries(settings(names).map(({ flag }) => [flag!, { type: 'string' as const }]));
}

/** `own`: the command's further options. */
export function settingHelp(names: readonly SettingName[], own: [string, string][] = []): string {
  const rows = settings(names).map(({ flag, env, doc, fallback }): [string, string] => [
    `--${flag}`,
    `${doc} (${env}${fallback ? `, default ${fallback}` : ''})`,
  ]);
  return optionHelp([...rows, ...own]);
}

export function optionHelp(rows: [string, string][]): string {
  const width = Math.max(...rows.map(([left]) => left.length)) + 2;
  return rows.map(([left, right]) => `  ${left.padEnd(width)}${right}`).join('\n');
}

export function configOf(flags: Record<string, string | boolean | undefined>): Config {
  const texts = Object.fromEntries(Object.entries(flags).filter(([, value]) => typeof value === 'string'));
  return readConfig(texts as Record<string, string>, process.env);
}

export function wholeFlag(
  name: string,
  text: string | boolean | undefined,
  fallback: number,
  min: number,
  max: number,
): number {
  if (text === undefined) return fallback;
  const value = Number(text);
  if (typeof text !== 'string' || !/^\d+$/.test(text) || value < min || value > max) {
    throw new UsageError(`--${name} must be a whole number from ${min} to ${max}`);
  }
  return value;
}
