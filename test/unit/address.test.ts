import { readdirSync, readFileSync } from 'node:fs';
import type { FastifyRequest } from 'fastify';
import { describe, expect, it } from 'vitest';
import { readConfig } from '../../src/base/config.ts';
import { unavailable } from '../../src/base/errors.ts';
import { hostsOf, isLoopback } from '../../src/base/loopback.ts';
import { weaknessOf } from '../../src/base/secrets.ts';
import { mustBeHere } from '../../src/cli/demo.ts';
import { mustBeStrong } from '../../src/cli/strong.ts';
import { addressKey, callerOf, isLocalAddress, networkKey } from '../../src/http/address.ts';
import { HTTP_DEFAULTS } from '../../src/http/context.ts';
import { createServer } from '../../src/http/server.ts';
import { manualRuntime } from '../contract/manual.ts';

describe('callerOf', () => {
  it.each([
    ['203.0.113.7', '203.0.113.7'],
    ['2001:db8:1:2:3:4:5:6', '2001:db8:1:2::/64'],
    // A proxy of the own network may stand for everybody.
    ['127.0.0.1', null],
    ['10.1.2.3', null],
    ['fd00::1', null],
  ])('%s is %s', (ip, caller) => {
    expect(callerOf({ ip, socket: {} } as FastifyRequest)).toBe(caller);
  });
});

describe('addressKey', () => {
  it.each([
    ['203.0.113.7', '203.0.113.7'],
    ['::ffff:203.0.113.7', '203.0.113.7'],
    ['::FFFF:203.0.113.7', '203.0.113.7'],
    ['2001:db8:1:2:3:4:5:6', '2001:db8:1:2::/64'],
    ['2001:0DB8:0001:0002::', '2001:db8:1:2::/64'],
    ['2001:db8::1', '2001:db8:0:0::/64'],
    ['2001:db8::5:6:7:8:9', '2001:db8:0:5::/64'],
    ['::1', '0:0:0:0::/64'],
    ['::', '0:0:0:0::/64'],
    ['1::', '1:0:0:0::/64'],
    ['1:2:3::', '1:2:3:0::/64'],
    ['::2:3:4:5:6:7:8', '0:2:3:4::/64'],
    ['64:ff9b::192.0.2.1', '64:ff9b:0:0::/64'],
    ['fe80::1%eth0', 'fe80:0:0:0::/64'],
    ['1:2:3:4:5:6:7.8.9.10', '1:2:3:4::/64'],
    ['1::5:6:7:8', '1:0:0:0::/64'],
    // A text that is not an address counts as itself.
    ['', ''],
    ['unknown', 'unknown'],
    ['not:an:address', 'not:an:address'],
  ])('%s counts as %s', (ip, key) => {
    expect(addressKey(ip)).toBe(key);
  });

  it('all addresses of a /64 are one, and the next /64 is another', () => {
    expect(addressKey('2001:db8:0:1::')).toBe(addressKey('2001:db8:0:1:ffff:ffff:ffff:ffff'));
    expect(addressKey('2001:db8:0:1::')).not.toBe(addressKey('2001:db8:0:2::'));
  });
});

it.each([
  ['203.0.113.7', '203.0.113.7'],
  ['::ffff:203.0.113.7', '203.0.113.7'],
  ['2001:db8:1:2:3:4:5:6', '2001:db8:1::/48'],
  ['2001:db8::1', '2001:db8:0::/48'],
  ['unknown', 'unknown'],
])('%s is in the network %s', (ip, network) => {
  expect(networkKey(ip)).toBe(network);
});

it.each([
  ['127.0.0.1', true],
  ['10.1.2.3', true],
  ['172.31.255.255', true],
  ['172.32.0.0', false],
  ['192.168.0.1', true],
  ['::ffff:10.0.0.1', true],
  ['::1', true],
  ['fd00::1', true],
  ['fe80::1%eth0', true],
  ['2001:db8::1', false],
  ['8.8.8.8', false],
  ['unknown', false],
])('%s is local: %s', (ip, local) => {
  expect(isLocalAddress(ip)).toBe(local);
});

describe('a demo’s servers', () => {
  it.each([
    ['redis://127.0.0.1:6379', ['127.0.0.1']],
    ['redis://user:p@ss:w@localhost/0', ['localhost']],
    ['redis+cluster://127.0.0.1:1,10.0.0.1:2,[::1]:3', ['127.0.0.1', '10.0.0.1', '[::1]']],
    ['postgres:///shop?host=/var/run/postgresql', []],
    ['postgres:///shop?host=db.example.com', ['db.example.com']],
    ['postgres://127.0.0.1/shop?host=db.example.com', ['127.0.0.1', 'db.example.com']],
    ['mysql://root@db:3306/shop', ['db']],
    ['kafka://a:9092,b:9092/topic', ['a', 'b']],
  ])('%s is on %j', (url, hosts) => {
    expect(hostsOf(url)).toEqual(hosts);
  });

  it('are on this machine, or it does not start', () => {
    const none = { redisUrl: null, databaseUrl: null, pipeUrl: null };
    mustBeHere(none);
    mustBeHere({ redisUrl: 'redis://localhost', databaseUrl: 'postgres://[::1]/shop', pipeUrl: 'amqp://127.0.0.1' });
    mustBeHere({ ...none, databaseUrl: 'sqlite:./folder' });
    const elsewhere =
      (over: object): (() => void) =>
      () =>
        mustBeHere({ ...none, ...over });
    expect(elsewhere({ redisUrl: 'redis://:secret@cache.example.com' })).toThrow(/^REDIS_URL is on cache.example.com/);
    expect(elsewhere({ databaseUrl: 'mysql://u:secret@127.0.0.1.example.com/db' })).toThrow(/^DATABASE_URL is on/);
    expect(elsewhere({ pipeUrl: 'kafka://localhost:1,k2:9092/t' })).toThrow(/^PIPE_URL is on k2/);
  });

  it.each(['localhost', 'LOCALHOST', '127.0.0.1', '127.9.9.9', '::1', '[::1]'])('%s is this machine', (host) => {
    expect(isLoopback(host)).toBe(true);
  });

  it.each(['0.0.0.0', '::', '127.0.0.1.example.com', '10.0.0.1', 'localhost.example.com', ''])('%s is not', (host) => {
    expect(isLoopback(host)).toBe(false);
  });
});

describe('the limit of an address', () => {
  const shop = {
    get: () => {
      throw unavailable('there is none');
    },
    readiness: () => ({ status: 'ok' as const, parts: { gate: '', pipe: '', ledger: '' } }),
    closing: () => false,
    blockedMs: () => 0,
  };

  async function refused(trustProxy: boolean | string, forwarded: (i: number) => string): Promise<number> {
    const http = { ...HTTP_DEFAULTS, rateLimitAddress: 5 };
    const app = await createServer({ shop, http, runtime: manualRuntime(), trustProxy });
    let count = 0;
    for (let i = 1; i <= 20; i++) {
      const headers = { 'x-forwarded-for': forwarded(i) };
      const { statusCode } = await app.inject({ url: '/v1/time', remoteAddress: '192.0.2.9', headers });
      if (statusCode === 429) count++;
    }
    await app.close();
    return count;
  }

  it('counts the address that the proxy adds, not one that a client sends, and an IPv6 network as one', async () => {
    expect(await refused(false, (i) => `10.1.1.${i}`), 'no proxy').toBe(15);
    expect(await refused(true, (i) => `10.1.1.${i}`), 'each from its own address').toBe(0);
    expect(await refused(true, (i) => `10.1.1.${i}, 203.0.113.5`), 'written before the proxy’s').toBe(15);
    expect(await refused('192.0.2.0/24', (i) => `10.1.1.${i}, 203.0.113.5`), 'a proxy by its address').toBe(15);
    expect(await refused('198.51.100.1', (i) => `10.1.1.${i}`), 'not a proxy of ours').toBe(15);
    expect(await refused(true, (i) => `2001:db8:7:7::${i.toString(16)}`), 'one /64').toBe(15);
    expect(await refused(true, (i) => `2001:db8:7:${i.toString(16)}::1`), 'many of them').toBe(0);
    expect(await refused(true, (i) => `<script>${i}`), 'no address').toBe(15);
  });
});

describe('a secret that can be guessed', () => {
  const strong = '0123456789abcdefgh';
  const config = readConfig({}, { DOORBUSTER_ADMIN_KEY: strong, DOORBUSTER_AUTH_SECRET: strong, HOST: '192.0.2.1' });

  it('keeps a server from listening where others can reach it, whichever setting it is', () => {
    mustBeStrong({ ...config, paymentSecrets: [strong], providerSecrets: { BANK: [strong] } });
    const keys = (...all: string[]) => all.map((key, at) => ({ name: `admin${at}`, key }));
    expect(() => mustBeStrong({ ...config, adminKeys: keys(strong, 'a') })).toThrow(/^DOORBUSTER_ADMIN_KEY /);
    expect(() => mustBeStrong({ ...config, authSecrets: [strong, 'b'] })).toThrow(/^DOORBUSTER_AUTH_SECRET /);
    expect(() => mustBeStrong({ ...config, paymentSecrets: ['c'] })).toThrow(/^PAYMENT_WEBHOOK_SECRET /);
    expect(() => mustBeStrong({ ...config, providerSecrets: { BANK: ['d'] } })).toThrow(
      /^PAYMENT_WEBHOOK_SECRET_BANK /,
    );
  });

  it('is every one that the docs print', () => {
    const root = new URL('../../', import.meta.url);
    const files = [
      'README.md',
      'README.zh-CN.md',
      'examples/',
      'docs/',
      'docs/guides/',
      'docs/reference/',
      'ops/',
    ].flatMap((path) =>
      path.endsWith('/')
        ? readdirSync(new URL(path, root), { withFileTypes: true })
            .filter((entry) => entry.isFile() && !entry.name.endsWith('.png'))
            .map(({ name }) => path + name)
        : [path],
    );
    const found: string[] = [];
    for (const file of files) {
      const text = readFileSync(new URL(file, root), 'utf8');
      const given = /(?:DOORBUSTER_ADMIN_KEY|DOORBUSTER_AUTH_SECRET|PAYMENT_WEBHOOK_SECRET\w*)=["']?([^\s"'`$]+)/g;
      const options = /(?:adminKey|authSecret|--admin-key|--auth-secret)[:=]? ?['"]?([\w…-]{3,})/g;
      for (const [, values] of [...text.matchAll(given), ...text.matchAll(options)]) {
        for (const value of values!.split(',')) found.push(value.split(':').at(-1)!);
      }
    }
    expect(found).toContain('…');
    expect(found).toContain('an-admin-key');
    for (const value of new Set(found)) expect(weaknessOf(value), value).not.toBeNull();
  });

  it.each(['a', '…', 'x'.repeat(15), '0123456789abcde', 'ab'.repeat(20), '1234567'.repeat(4), 'an-admin-key'])(
    '%s is refused',
    (secret) => {
      expect(weaknessOf(secret)).not.toBeNull();
    },
  );

  it.each(['0123456789abcdef', '12345678'.repeat(2), 'f3a9…a long one of ours'])('%s is not', (secret) => {
    expect(weaknessOf(secret)).toBeNull();
  });
});
