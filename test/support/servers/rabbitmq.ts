import { chmodSync, mkdirSync, readFileSync, realpathSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { until } from '../fault-wait.ts';
import { askDesk } from './desk.ts';
import { RABBITMQ, whyMissing } from './install.ts';
import { firstAnswer } from './probe.ts';
import { HOST, type Place, ServerProcess } from './process.ts';
import { entriesOf } from './program.ts';
import { ordinaryUser } from './user.ts';

/** True if this machine can start a RabbitMQ of its own. */
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
/** The same for all: none of them hears of another, and a node's data are bound to its name. */
const NODE = 'doorbuster@localhost';
/** Where the node listens for other nodes. There are none, but it does not start without. */
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
      // It listens last, when all else is done.
      ready: async ({ port }) => (await firstAnswer(HOST, port, AMQP_HEADER, 1_000))[0] === METHOD_FRAME,
      readyWithinMs: READY_WITHIN_MS,
    });
  }

  /** Its account may do everything on this server. */
  get url(): string {
    return `amqp://${ACCOUNT}@${this.host}:${this.port}`;
  }

  /** A folder for the PATH in which `rabbitmqctl` speaks to this server, and not to the machine's own. */
  controlPath(): string {
    const bin = join(this.folder, 'bin');
    const place = { port: this.port, folder: this.folder };
    const { ERL_EPMD_PORT: _, ERL_ZFLAGS: flags, ...env } = environment(place);
    const settings = Object.entries({
      ...env,
      // There is no daemon to ask where the node is: it is told, and does not listen at that port itself.
      RABBITMQ_CTL_ERL_ARGS: `${flags} -dist_listen false -erl_epmd_port ${this.port + NODE_PORT_ABOVE}`,
    }).map(([name, value]) => `export ${name}='${value}'\n`);
    mkdirSync(bin, { recursive: true });
    const script = join(bin, 'rabbitmqctl');
    writeFileSync(script, `#!/bin/sh\n${settings.join('')}exec '${join(homeOf(place), 'sbin', 'rabbitmqctl')}' "$@"\n`);
    chmodSync(script, 0o755);
    return bin;
  }

  /**
   * Resolves when this quorum queue, of the default virtual host, survives a kill. A server of before 2024 (rabbitmq/ra#443)
   * says that it is declared, and writes its name down a second later: a kill meanwhile costs it all that it has confirmed.
   */
  async keepsQueue(queue: string): Promise<void> {
    const names = join(this.folder, 'data', NODE, 'quorum', NODE, 'names.dets');
    const name = Buffer.from(`%2F_${queue}`);
    // As Erlang writes terms: the length, then the name. Of one that begins with it the length is another.
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
    // It would refuse messages when the machine has less: the tests need little, and what others use is their affair.
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
    // Where it makes the secret that nodes know each other by.
    HOME: folder,
    RABBITMQ_NODENAME: NODE,
    RABBITMQ_CONFIG_FILE: configOf(place),
    RABBITMQ_SCRIPTS_DIR: join(homeOf(place), 'sbin'),
    RABBITMQ_MNESIA_BASE: join(folder, 'data'),
    RABBITMQ_LOG_BASE: join(folder, 'log'),
    RABBITMQ_ENABLED_PLUGINS_FILE: join(folder, 'enabled_plugins'),
    // The machine's own settings are none of ours.
    RABBITMQ_CONF_ENV_FILE: '/dev/null',
    RABBITMQ_ADVANCED_CONFIG_FILE: join(folder, 'advanced.config'),
    // The shell script then becomes the server instead of waiting for it: our signals reach the server itself.
    RUNNING_UNDER_SYSTEMD: 'true',
    RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS: [
      '+S 2:2',
      // Named from the start: RabbitMQ would start epmd, a daemon that outlives it, before it gave itself the name.
      `-sname ${NODE}`,
      `-erl_epmd_port ${nodePort}`,
      `-kernel inet_dist_use_interface {${HOST.replaceAll('.', ',')}}`,
    ].join(' '),
    // For its child processes, too: once a minute one of them would start the daemon.
    ERL_ZFLAGS: '-start_epmd false',
    // And where the machine has that daemon, it is told nothing: nobody listens there.
    ERL_EPMD_PORT: '1',
    ERL_CRASH_DUMP_SECONDS: '0',
  };
}

/**
 * A home like the package's own, with the server and what it needs, but without the plugins: it looks for each of its
 * modules in every folder that it has, and would take twice as long to start.
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

/** The folders of an application and of all that it builds upon. What is not there comes with Erlang. */
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
 * A RabbitMQ for tests that need any and leave it alone: TEST_RABBITMQ_URL, or else one that all test files share. It may
 * hold what others put there, so queues and exchanges must have a prefix of the test's own.
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
