import { chmodSync, mkdirSync, readFileSync, realpathSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { until } from '../fault-wait.ts';
import { askDesk } from './desk.ts';
import { RABBITMQ, whyMissing } from './install.ts';
import { firstAnswer } from './probe.ts';
import { HOST, type Place, ServerProcess } from './process.ts';
import { entriesOf } from './program.ts';
import { ordinaryUser } from './user.ts';

/** True if this machine can start a private RabbitMQ. */
export const rabbitmqAvailable: boolean = RABBITMQ.find() !== null;

export interface RabbitmqOptions {
  /** Further lines of rabbitmq.conf, e.g. ['channel_max = 10']. */
  config?: string[];
}

const USERS = ['rabbitmq', 'nobody'];
/** After a kill it rebuilds its indices first. */
const READY_WITHIN_MS = 30_000;
/** Account and password of every fresh server, for connections from this machine only. */
const ACCOUNT = 'guest:guest';
/** The same for all, because they do not know each other, and a node's data are bound to its name. */
const NODE = 'doorbuster@localhost';
/** The port for other nodes. There are none, but it does not start without it. */
const NODE_PORT_ABOVE = 10_000;
const AMQP_HEADER = Buffer.from('AMQP\0\0\x09\x01', 'latin1');
const METHOD_FRAME = 1;

/** A private RabbitMQ. */
export class RabbitmqServer extends ServerProcess {
  constructor({ config = [] }: RabbitmqOptions = {}) {
    const command = RABBITMQ.find();
    if (command === null) throw new Error(whyMissing(RABBITMQ)!);
    super({
      name: 'rabbitmq',
      command,
      user: ordinaryUser(USERS),
      portsAbove: [NODE_PORT_ABOVE],
      args: () => [],
      env: environment,
      prepare: (place) => {
        linkHome(command, homeOf(place));
        writeFileSync(configOf(place), [...settings(place), ...config].map((line) => `${line}\n`).join(''));
      },
      // It listens only when everything else is ready.
      ready: async ({ port }) => (await firstAnswer(HOST, port, AMQP_HEADER, 1_000))[0] === METHOD_FRAME,
      readyWithinMs: READY_WITHIN_MS,
    });
  }

  /** Its account has all rights on this server. */
  get url(): string {
    return `amqp://${ACCOUNT}@${this.host}:${this.port}`;
  }

  /** A folder for the PATH whose `rabbitmqctl` talks to this server. */
  controlPath(): string {
    const bin = join(this.folder, 'bin');
    const place = { port: this.port, folder: this.folder };
    const { ERL_EPMD_PORT: _, ERL_ZFLAGS: flags, ...env } = environment(place);
    const settings = Object.entries({
      ...env,
      // Without epmd it must be told the node's port, and must not listen there itself.
      RABBITMQ_CTL_ERL_ARGS: `${flags} -dist_listen false -erl_epmd_port ${this.port + NODE_PORT_ABOVE}`,
    }).map(([name, value]) => `export ${name}='${value}'\n`);
    mkdirSync(bin, { recursive: true });
    const script = join(bin, 'rabbitmqctl');
    writeFileSync(script, `#!/bin/sh\n${settings.join('')}exec '${join(homeOf(place), 'sbin', 'rabbitmqctl')}' "$@"\n`);
    chmodSync(script, 0o755);
    return bin;
  }

  /**
   * Resolves when this quorum queue of the default virtual host would survive a kill. A server from before 2024 (rabbitmq/ra#443)
   * confirms the declaration and stores its name a second later: a kill in between loses all confirmed messages.
   */
  async keepsQueue(queue: string): Promise<void> {
    const names = join(this.folder, 'data', NODE, 'quorum', NODE, 'names.dets');
    const name = Buffer.from(`%2F_${queue}`);
    // An Erlang term: the length, then the name. A longer name with the same beginning has another length.
    const atom = Buffer.concat([Buffer.from([name.length]), name]);
    await until(`${queue} is written down`, 10_000, () => readFileSync(names).includes(atom));
  }
}

/** A private RabbitMQ on a free port, with no plugins; resolves when it speaks AMQP. */
export async function startRabbitmq(options: RabbitmqOptions = {}): Promise<RabbitmqServer> {
  const server = new RabbitmqServer(options);
  await server.start();
  return server;
}

function homeOf({ folder }: Place): string {
  return join(folder, 'home');
}

function configOf({ folder }: Place): string {
  return join(folder, 'rabbitmq.conf');
}

function settings({ port }: Place): string[] {
  return [
    `listeners.tcp.1 = ${HOST}:${port}`,
    // By default it refuses messages if the machine has little free memory; the tests need little.
    'vm_memory_high_watermark.absolute = 512MB',
    'disk_free_limit.absolute = 1MB',
    'log.file = false',
    'log.console = true',
    'log.console.level = warning',
  ];
}

function environment(place: Place): Record<string, string> {
  const { port, folder } = place;
  const nodePort = port + NODE_PORT_ABOVE;
  return {
    // The folder for its cookie file.
    HOME: folder,
    RABBITMQ_NODENAME: NODE,
    RABBITMQ_CONFIG_FILE: configOf(place),
    RABBITMQ_SCRIPTS_DIR: join(homeOf(place), 'sbin'),
    RABBITMQ_MNESIA_BASE: join(folder, 'data'),
    RABBITMQ_LOG_BASE: join(folder, 'log'),
    RABBITMQ_ENABLED_PLUGINS_FILE: join(folder, 'enabled_plugins'),
    // Ignore the machine's configuration.
    RABBITMQ_CONF_ENV_FILE: '/dev/null',
    RABBITMQ_ADVANCED_CONFIG_FILE: join(folder, 'advanced.config'),
    // Makes the shell script exec the server, so that our signals reach the server itself.
    RUNNING_UNDER_SYSTEMD: 'true',
    RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS: [
      '+S 2:2',
      // Named from the start: otherwise RabbitMQ first starts epmd, a daemon that outlives it.
      `-sname ${NODE}`,
      `-erl_epmd_port ${nodePort}`,
      `-kernel inet_dist_use_interface {${HOST.replaceAll('.', ',')}}`,
    ].join(' '),
    // Also for its child processes, one of which would start epmd once a minute.
    ERL_ZFLAGS: '-start_epmd false',
    // A port without epmd, so that it does not register with the machine's own.
    ERL_EPMD_PORT: '1',
    ERL_CRASH_DUMP_SECONDS: '0',
  };
}

/**
 * A home like the package's own, with the server and its dependencies, but without plugins: it looks for each of its
 * modules in every folder, and would take twice as long to start.
 */
function linkHome(command: string, home: string): void {
  // Behind the links of PATH.
  const original = dirname(dirname(realpathSync(command)));
  rmSync(home, { recursive: true, force: true });
  mkdirSync(join(home, 'plugins'), { recursive: true });
  for (const folder of ['sbin', 'escript']) symlinkSync(join(original, folder), join(home, folder));
  for (const application of needed(join(original, 'plugins'), 'rabbit')) {
    symlinkSync(join(original, 'plugins', application), join(home, 'plugins', application));
  }
}

/** The folders of an application and its dependencies. Those that are missing come with Erlang. */
function needed(plugins: string, name: string, found = new Set<string>()): Set<string> {
  const folder = entriesOf(plugins).find((entry) => entry.replace(/-[^-]*$/, '') === name);
  if (folder === undefined || found.has(folder)) return found;
  found.add(folder);
  const about = readFileSync(join(plugins, folder, 'ebin', `${name}.app`), 'utf8');
  const list = /\{\s*applications\s*,\s*\[([^\]]*)\]/.exec(about)?.[1] ?? '';
  for (const other of list.matchAll(/\w+/g)) needed(plugins, other[0], found);
  return found;
}

let shared: Promise<RabbitmqServer> | null = null;

/**
 * A RabbitMQ for tests that need any and do not break it: TEST_RABBITMQ_URL, or one that all test files share. It may
 * contain data of others, so queues and exchanges need a prefix of the test's own.
 */
export async function rabbitmqUrl(): Promise<string> {
  return process.env[RABBITMQ.urlVariable] || (await sharedRabbitmqUrl());
}

/** The same, but never TEST_RABBITMQ_URL: for tests that must know its accounts and its port. */
export async function sharedRabbitmqUrl(): Promise<string> {
  const atDesk = await askDesk('rabbitmq');
  if (atDesk) return atDesk;
  // cleanUpServers may have ended it between two tests.
  if (shared !== null && !(await shared).running) shared = null;
  shared ??= startRabbitmq();
  return (await shared).url;
}
