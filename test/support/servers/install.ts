import { join } from 'node:path';
import { fromApt } from './apt.ts';
import { findKafka, fromMaven } from './kafka-install.ts';
import { entriesOf, programIn, programPath } from './program.ts';

/** A real server that tests use. A new one needs an entry here, a file beside redis.ts, and a describeWith… */
export interface Product {
  /** Its name in messages: the program's. */
  name: string;
  /** Where it is on this machine, or null. */
  find(): string | null;
  /** How to install it if it is missing. */
  source: Source;
  /** The environment variable with the URL of a running one. */
  urlVariable: string;
}

/** A way to install a product. */
export interface Source {
  /** What it installs, and how, for messages. */
  words: string;
  /** Why it cannot be used here, or null if it can. */
  whyNot(): string | null;
  /** Null if all went well, the reason otherwise. */
  install(): string | null;
}

export const REDIS: Product = {
  name: 'redis-server',
  find: () => programPath('redis-server'),
  source: fromApt({ packages: ['redis-server'] }),
  urlVariable: 'TEST_REDIS_URL',
};

export const MARIADB: Product = {
  name: 'mariadbd',
  find: () => programPath('mariadbd', ['/usr/sbin']),
  // Not mariadb-server: these packages contain the same programs without a service, a user and a database.
  // The client contains my_print_defaults, which mariadb-install-db needs.
  source: fromApt({ packages: ['mariadb-server-core', 'mariadb-client-core'] }),
  urlVariable: 'TEST_MYSQL_URL',
};

/** Each version has its own folder, and Debian adds none of them to PATH. */
const POSTGRES_VERSIONS = '/usr/lib/postgresql';

export const POSTGRES: Product = {
  name: 'postgres',
  find: () => {
    const versions = entriesOf(POSTGRES_VERSIONS).sort((one, other) => Number(other) - Number(one));
    return programPath(
      'postgres',
      versions.map((version) => join(POSTGRES_VERSIONS, version, 'bin')),
    );
  },
  source: fromApt({
    packages: ['postgresql'],
    // Otherwise the package creates a database cluster that starts with the machine.
    whileInstalling: {
      path: '/etc/postgresql-common/createcluster.d/doorbuster-tests.conf',
      text: 'create_main_cluster = false\n',
    },
  }),
  urlVariable: 'TEST_POSTGRES_URL',
};

export const RABBITMQ: Product = {
  name: 'rabbitmq-server',
  // Debian's own path first: its command in PATH is a wrapper that requires a certain user, and keeps signals from the server.
  find: () => programIn(['/usr/lib/rabbitmq/bin'], 'rabbitmq-server') ?? programPath('rabbitmq-server'),
  source: fromApt({ packages: ['rabbitmq-server'] }),
  urlVariable: 'TEST_RABBITMQ_URL',
};

export const KAFKA: Product = {
  name: 'kafka',
  find: findKafka,
  source: fromMaven(),
  urlVariable: 'TEST_KAFKA_URL',
};

/** All products that the set-up of a test run provides. */
export const PRODUCTS: readonly Product[] = [REDIS, MARIADB, POSTGRES, RABBITMQ, KAFKA];

/** Why a missing product may not be installed by us, or null if it may. */
function whyNotInstalled({ urlVariable, source }: Product): string | null {
  if (process.env[urlVariable]) return `${urlVariable} names one that runs elsewhere`;
  if (process.env.DOORBUSTER_TEST_INSTALL === '0') return 'DOORBUSTER_TEST_INSTALL=0';
  return source.whyNot();
}

/** Why the server is missing, as a sentence without its full stop; null if it is not. */
export function whyMissing(product: Product): string | null {
  if (product.find() !== null) return null;
  const why = whyNotInstalled(product);
  const missing = `${product.name} is not on this machine`;
  return why === null ? missing : `${missing} and may not be installed: ${why}`;
}

/** Installs missing products if allowed. Returns why a product is still missing, by name. */
export function installMissing(products: readonly Product[], print: (line: string) => void): Record<string, string> {
  const wanted = products.filter((product) => product.find() === null && whyNotInstalled(product) === null);
  const failures = install(wanted, print);
  const missing: Record<string, string> = {};
  for (const product of products) {
    const why = whyMissing(product);
    if (why === null) continue;
    const failure = failures.get(product);
    missing[product.name] = failure === undefined ? why : `${why} and could not be installed: ${failure}`;
  }
  return missing;
}

/** Returns the failures by product. */
function install(products: readonly Product[], print: (line: string) => void): Map<Product, string> {
  const failures = new Map<Product, string>();
  // One by one, so that one package that a Debian release lacks does not prevent the others.
  for (const product of products) {
    print(`doorbuster tests: installing ${product.source.words} (DOORBUSTER_TEST_INSTALL=0 skips it)`);
    const failure = product.source.install();
    if (failure === null) continue;
    failures.set(product, failure);
    print(`doorbuster tests: no ${product.name}: ${failure}`);
  }
  return failures;
}
