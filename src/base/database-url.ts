import { readFileSync } from 'node:fs';
import { isIP } from 'node:net';
import { messageOf, TerminalError } from './errors.ts';

/**
 * The address of a shared database: `mysql://user:password@host:3306/database?sslmode=verify-full`. Both kinds of database take
 * the same parameters, and drivers' own ones are refused. If a misspelt `sslmode` were ignored, passwords and orders would be
 * sent in clear text.
 */
export interface DatabaseUrl {
  readonly product: 'mysql' | 'postgres';
  /** The address for the driver, without our TLS parameters. */
  readonly bare: string;
  readonly sslmode: SslMode | null;
  readonly rootCert: string | null;
  /** `host:port`, for messages. */
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

/** Throws an Error whose message follows the setting's name and does not repeat the address, which contains a password. */
export function parseDatabaseUrl(text: string): DatabaseUrl {
  const url = URL.parse(text);
  const product = PRODUCTS[url?.protocol ?? /^[a-z]*:/.exec(text)?.[0] ?? ''];
  if (product === undefined) throw new Error('must begin with mysql:, mariadb:, postgres: or postgresql:');
  if (url === null || !isDecodable(url)) {
    throw new Error(
      `is not a valid URL: expected ${product}://user:password@host:port/database, with special characters in the password percent-encoded`,
    );
  }
  if (url.pathname.length < 2) throw new Error(`names no database: expected ${product}://…@host:port/database`);
  const { sslmode, rootCert } = takeParameters(url, product);
  const host = url.searchParams.get('host') ?? url.hostname;
  if (sslmode === 'verify-full' && product === 'mysql' && isIP(host.replaceAll(/[[\]]/g, '')) !== 0) {
    // The driver would not compare the certificate with this address.
    throw new Error('has sslmode=verify-full, which needs a host name in place of an IP address');
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

/** Removes the TLS parameters from the address and returns them. */
function takeParameters(url: URL, product: DatabaseUrl['product']): Pick<DatabaseUrl, 'sslmode' | 'rootCert'> {
  // The driver's parameter for a Unix socket.
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
          `has an unknown parameter ${JSON.stringify(name)}: known ones are sslmode, sslrootcert, ${own}`,
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
  /** Whether the certificate must name the host. */
  readonly named: boolean;
}

/**
 * The modes of libpq: `require` encrypts without verifying the server, or means `verify-ca` if there is a `sslrootcert`. Without
 * that file, Node's own certificate authorities and those of NODE_EXTRA_CA_CERTS are trusted.
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

/** True if TLS failed the connection: retrying does not help. */
export function isTlsRefusal(error: unknown): boolean {
  const { code } = (error ?? {}) as { code?: unknown };
  return (
    /CERT|SELF_SIGNED|UNABLE_TO_(VERIFY|GET)|HANDSHAKE_(NO_SSL|SSL_ERROR)|ERR_TLS|ERR_SSL/.test(String(code)) ||
    messageOf(error).includes('does not support SSL')
  );
}
