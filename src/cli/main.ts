import { messageInFull, TerminalError } from '../base/errors.ts';
import { nearest } from '../base/nearest.ts';
import { VERSION } from '../base/version.ts';
import { type Command, UsageError } from './command.ts';

/** Each command is loaded on demand: `doctor` does not need an HTTP server. */
const COMMANDS: { name: string; summary: string; load: () => Promise<Command> }[] = [
  {
    name: 'serve',
    summary: 'run the server (--demo: random keys and an open sale)',
    load: async () => (await import('./serve.ts')).serve,
  },
  {
    name: 'worker',
    summary: 'write admitted orders to the ledger, for servers with --no-worker',
    load: async () => (await import('./worker.ts')).worker,
  },
  {
    name: 'migrate',
    summary: 'bring the ledger’s schema up to date',
    load: async () => (await import('./migrate.ts')).migrate,
  },
  {
    name: 'doctor',
    summary: 'check versions, schema, disk and configuration',
    load: async () => (await import('./doctor.ts')).doctor,
  },
  {
    name: 'check',
    summary: 'find stuck stock, unsettled payments and wrong counts',
    load: async () => (await import('./check.ts')).check,
  },
  {
    name: 'crowd',
    summary: 'send a crowd of buyers and check the promises',
    load: async () => (await import('./crowd.ts')).crowd,
  },
  {
    name: 'seats',
    summary: 'turn a seating plan into the definition of a sale',
    load: async () => (await import('./seats.ts')).seats,
  },
];

export const COMMAND_NAMES = COMMANDS.map(({ name }) => name);

function help(): string {
  const width = Math.max(...COMMANDS.map(({ name }) => name.length)) + 2;
  return [
    `doorbuster ${VERSION}: sells scarce things to a crowd`,
    '',
    'Usage: doorbuster <command> [options]',
    '',
    ...COMMANDS.map(({ name, summary }) => `  ${name.padEnd(width)}${summary}`),
    '',
    'doorbuster help <command>, or <command> --help, shows its options; doorbuster --version prints the version.',
    'Every setting is also an environment variable: docs/reference/config.md.',
  ].join('\n');
}

/** Runs one command and returns its exit code. A failure prints one line on stderr. */
export async function main(args: string[]): Promise<number> {
  // `doorbuster help serve` is `doorbuster serve --help`.
  const [name, ...rest] = args[0] === 'help' && args.length > 1 ? [args[1]!, '--help'] : args;
  if (name === undefined || name === '--help' || name === '-h' || name === 'help') {
    console.log(help());
    return name === undefined ? 2 : 0;
  }
  if (name === '--version' || name === '-v') {
    console.log(VERSION);
    return 0;
  }
  const command = await COMMANDS.find((one) => one.name === name)?.load();
  if (command === undefined) {
    const near = nearest(name, COMMAND_NAMES);
    const hint = near === null ? 'doorbuster --help lists them' : `is it ${near}?`;
    console.error(`doorbuster: there is no command "${name}"; ${hint}`);
    return 2;
  }
  if (rest.includes('--help') || rest.includes('-h')) {
    console.log(command.help);
    return 0;
  }
  try {
    return await command.run(rest);
  } catch (error) {
    console.error(`doorbuster ${name}: ${messageInFull(error)}`);
    if (!(error instanceof UsageError || error instanceof TerminalError) && process.env['LOG_LEVEL'] === 'debug')
      console.error(error);
    return error instanceof UsageError ? 2 : 1;
  }
}
