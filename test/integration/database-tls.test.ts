import { execFileSync, spawnSync } from 'node:child_process';
import { chmodSync, chownSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { messageInFull } from '../../src/base/errors.ts';
import { systemRuntime } from '../../src/base/runtime.ts';
import { openSqlLedger } from '../../src/ledger/drivers/open.ts';
import { until } from '../support/fault-wait.ts';
import { cleanUp, temporaryFolder } from '../support/server.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithOwnMysql, describeWithOwnPostgres } from '../support/servers/describe.ts';
import { startMariadb } from '../support/servers/mariadb.ts';
import { startPostgres } from '../support/servers/postgres.ts';
import { ordinaryUser } from '../support/servers/user.ts';

/** sslmode of DATABASE_URL, with servers that have self-signed certificates. */

const hasOpenssl = spawnSync('openssl', ['version']).status === 0;
const describeWithOpenssl = hasOpenssl ? describe : describe.skip;

interface Certificate {
  cert: string;
  key: string;
}

/** Self-signed, for `localhost`. Its key is readable by the server's user only, as PostgreSQL requires. */
function certificate(users: string[]): Certificate {
  const folder = join(temporaryFolder(), 'tls');
  mkdirSync(folder);
  chmodSync(join(folder, '..'), 0o755);
  const [cert, key] = [join(folder, 'cert.pem'), join(folder, 'key.pem')];
  const subject = ['-subj', '/CN=localhost', '-addext', 'subjectAltName=DNS:localhost'];
  const made = ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '2'];
  execFileSync('openssl', [...made, ...subject, '-keyout', key, '-out', cert], { stdio: 'ignore' });
  chmodSync(key, 0o600);
  const user = ordinaryUser(users);
  if (user !== null) chownSync(key, user.uid, user.gid);
  return { cert, key };
}

afterAll(async () => {
  await cleanUp();
  await cleanUpServers();
});

function suite(started: () => Promise<{ url: string; cert: string }>): void {
  let url: URL;
  let cert: string;

  beforeAll(async () => {
    const server = await started();
    url = new URL(server.url);
    cert = server.cert;
    url.hostname = 'localhost';
  }, 60_000);

  const addressed = (parameters: Record<string, string>, host = 'localhost'): string => {
    const own = new URL(url);
    own.hostname = host;
    for (const [name, value] of Object.entries(parameters)) own.searchParams.set(name, value);
    return own.href;
  };

  /** `open`, or the message of the failure. */
  const opened = (address: string): Promise<string> =>
    openSqlLedger(address, systemRuntime(), { migrate: true, exclusive: false }).then(
      async (ledger) => {
        await ledger.close();
        return 'open';
      },
      (error: unknown) => messageInFull(error),
    );

  it('a server that takes no clear text: without sslmode it refuses us', async () => {
    expect(await opened(addressed({}))).not.toBe('open');
    expect(await opened(addressed({ sslmode: 'disable' }))).not.toBe('open');
  });

  it('require: encrypted, whoever has signed the certificate', async () => {
    expect(await opened(addressed({ sslmode: 'require' }))).toBe('open');
    expect(await opened(addressed({ 'ssl-mode': 'require' }, '127.0.0.1'))).toBe('open');
  });

  it('verify-full: refused for good if nobody known has signed it, and taken with its sslrootcert', async () => {
    expect(await opened(addressed({ sslmode: 'verify-full' }))).toMatch(
      /TLS with the database at localhost:\d+ fails: /,
    );
    expect(await opened(addressed({ sslmode: 'verify-ca' }))).toMatch(/TLS with the database/);
    expect(await opened(addressed({ sslmode: 'verify-full', sslrootcert: cert }))).toBe('open');
  });

  it('the certificate of another host: verify-ca takes it, verify-full does not', async () => {
    const verifyCa = { sslmode: 'verify-ca', sslrootcert: cert };
    expect(await opened(addressed(verifyCa, '127.0.0.1'))).toBe('open');
    expect(await opened(addressed({ sslmode: 'require', sslrootcert: cert }, '127.0.0.1'))).toBe('open');
    expect(await opened(addressed({ ...verifyCa, sslmode: 'verify-full' }, '127.0.0.1'))).toMatch(
      /TLS with the database|verify-full, which needs a host name/,
    );
  });

  it('a missing sslrootcert is reported', async () => {
    expect(await opened(addressed({ sslmode: 'require', sslrootcert: '/no/such/file' }))).toMatch(
      /sslrootcert of DATABASE_URL cannot be read \(ENOENT/,
    );
  });
}

describeWithOpenssl('TLS to the database', () => {
  describeWithOwnMysql('MariaDB', () => {
    suite(async () => {
      const { cert, key } = certificate(['mysql', 'nobody']);
      const server = await startMariadb({ args: [`--ssl-cert=${cert}`, `--ssl-key=${key}`] });
      await server.query(`CREATE USER 'tls'@'%' IDENTIFIED BY 'tls' REQUIRE SSL`);
      await server.query(`GRANT ALL ON *.* TO 'tls'@'%'`);
      return { url: server.url.replace('doorbuster:doorbuster', 'tls:tls'), cert };
    });
  });

  describeWithOwnPostgres('PostgreSQL', () => {
    suite(async () => {
      const { cert, key } = certificate(['postgres', 'nobody']);
      const server = await startPostgres({
        args: ['-c', 'ssl=on', '-c', `ssl_cert_file=${cert}`, '-c', `ssl_key_file=${key}`],
      });
      const [row] = await server.query('SHOW hba_file');
      writeFileSync(String(row!.hba_file), 'hostssl all all 127.0.0.1/32 scram-sha-256\n');
      await server.query('SELECT pg_reload_conf()');
      await until('clear text is refused', 5_000, () =>
        server.query('SELECT 1').then(
          () => false,
          () => true,
        ),
      );
      return { url: server.url, cert };
    });
  });
});
