import { readFileSync } from 'node:fs';
import { isIP } from 'node:net';
import { messageOf, TerminalError } from './errors.ts';

/**
 * The address of a shared database: `mysql://user:password@host:3306/database?sslmode=verify-full`. One set of parameters for both
 * kinds; the drivers' own are not handed on. A misspelt one, dropped in silence, would send passwords and orders in clear text.
 */
export interface DatabaseUrl {
  readonly product: 'mysql' | 'postgres';
  /** Without parameters that are about TLS: what the driver gets. */
  readonly bare: string;
  readonly sslmode: SslMode | null;
  readonly rootCert: string | null;
  /** `host:port`, for words about it. */
  readonly place: string;
}

const SSL_MODES = ['disable', 'require', 'verify-ca', 'verify-full'] as const;
type SslMode = (typeof SSL_MODES)[number];

const PORTS = { mysql: 3306, postgres: 5432 };
const PRODUCTS: Record<string, DatabaseUrl['product']> = {
  'mysql:': 'mysql',
  'mariadb:': 'mysql',
  'postgres:': 'postgres',
  'postgresql:': 'postgres',
};

/** Throws an Error whose words go on after the name of the setting; it does not repeat the address, which has a password. */
export function parseDatabaseUrl(text: string): DatabaseUrl {
  const url = URL.parse(text);
  const product = PRODUCTS[url?.protocol ?? /^[a-z]*:/.exec(text)?.[0] ?? ''];
  if (product === undefined) throw new Error('must begin with mysql:, mariadb:, postgres: or postgresql:');
  if (url === null || !isDecodable(url)) {
    throw new Error(
      `is no address: expected ${product}://user:password@host:port/database, with special characters of the password percent-encoded`,
    );
  }
  if (url.pathname.length < 2) throw new Error(`names no database: expected ${product}://…@host:port/database`);
  const { sslmode, rootCert } = takeParameters(url, product);
  const host = url.searchParams.get('host') ?? url.hostname;
  if (sslmode === 'verify-full' && product === 'mysql' && isIP(host.replaceAll(/[[\]]/g, '')) !== 0) {
    // The driver would compare the certificate with another name.
    throw new Error('has sslmode=verify-full, which needs the name of the host in place of its number');
  }
  return { product, bare: url.href, sslmode, rootCert, place: `${host}:${url.port || PORTS[product]}` };
}

function isDecodable({ username, password, pathname }: URL): boolean {
  try {
    for (const part of [username, password, pathname]) decodeURIComponent(part);
    return true;
  } catch {
    return false;
  }
}

/** Takes what is about TLS off the address. */
function takeParameters(url: URL, product: DatabaseUrl['product']): Pick<DatabaseUrl, 'sslmode' | 'rootCert'> {
  // Sockets of this machine are named by a parameter.
  const own = product === 'mysql' ? 'socketPath' : 'host';
  let sslmode: SslMode | null = null;
  let rootCert: string | null = null;
  for (const [name, value] of [...url.searchParams]) {
    switch (name) {
      case 'sslmode':
      case 'ssl-mode':
        if (!SSL_MODES.includes(value as SslMode))
          throw new Error(`has ${name}: it must be one of ${SSL_MODES.join(', ')}`);
        sslmode = value as SslMode;
        break;
      case 'sslrootcert':
        rootCert = value;
        break;
      case own:
        continue;
      default:
        throw new Error(
          `has a parameter ${JSON.stringify(name)}, which is not known: there are sslmode, sslrootcert, ${own}`,
        );
    }
    url.searchParams.delete(name);
  }
  if (rootCert !== null && (sslmode === null || sslmode === 'disable')) {
    throw new Error('has sslrootcert, which needs sslmode=require, verify-ca or verify-full');
  }
  return { sslmode, rootCert };
}

export interface Tls {
  readonly rejectUnauthorized: boolean;
  readonly ca?: string;
  /** Whether the certificate must be that of the host. */
  readonly named: boolean;
}

/**
 * As libpq has it: `require` encrypts and does not ask who is at the other end, or with a `sslrootcert` is `verify-ca`. Without
 * that file the authorities that Node knows are trusted, and those in NODE_EXTRA_CA_CERTS.
 */
export function tlsOf({ sslmode, rootCert }: Pick<DatabaseUrl, 'sslmode' | 'rootCert'>): Tls | false {
  if (sslmode === null || sslmode === 'disable') return false;
  let ca: string | undefined;
  try {
    if (rootCert !== null) ca = readFileSync(rootCert, 'utf8');
  } catch (error) {
    throw new TerminalError('bad_config', `sslrootcert of DATABASE_URL cannot be read (${messageOf(error)})`);
  }
  return {
    rejectUnauthorized: sslmode !== 'require' || ca !== undefined,
    ...(ca !== undefined && { ca }),
    named: sslmode === 'verify-full',
  };
}

/** Codes and words of a connection that TLS has ended: waiting does not mend it. */
export function isTlsRefusal(error: unknown): boolean {
  const { code } = (error ?? {}) as { code?: unknown };
  return (
    /CERT|SELF_SIGNED|UNABLE_TO_(VERIFY|GET)|HANDSHAKE_(NO_SSL|SSL_ERROR)|ERR_TLS|ERR_SSL/.test(String(code)) ||
    messageOf(error).includes('does not support SSL')
  );
}
