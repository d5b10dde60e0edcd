import { describe, expect, it } from 'vitest';
import { specialAddress } from '../../src/webhooks/addresses.ts';
import { type Resolve, targetOf, urlFault } from '../../src/webhooks/target.ts';

describe('an address of the public Internet', () => {
  it.each([
    '1.1.1.1',
    '8.8.8.8',
    '9.255.255.255',
    '11.0.0.0',
    '100.63.255.255',
    '100.128.0.0',
    '126.255.255.255',
    '128.0.0.0',
    '168.63.129.15',
    '168.63.129.17',
    '169.253.255.255',
    '169.255.0.0',
    '172.15.255.255',
    '172.32.0.0',
    '192.0.1.0',
    '192.0.3.0',
    '192.167.255.255',
    '192.169.0.0',
    '198.17.255.255',
    '198.20.0.0',
    '223.255.255.255',
    '2001:4860:4860::8888',
    '2606:4700:4700::1111',
    '2a00:1450:4001:82b::200e',
    '2001:200::1',
    '2003::1',
    '3ffe::1',
    // An embedded IPv4 address is as public as the address itself.
    '::ffff:8.8.8.8',
    '::ffff:808:808',
    '0:0:0:0:0:ffff:0808:0808',
    '64:ff9b::8.8.8.8',
    '64:ff9b::808:808',
    '2002:808:808::1',
  ])('%s', (address) => expect(specialAddress(address)).toBeNull());
});

describe('an address that only this machine may reach', () => {
  it.each([
    ['0.0.0.0', 'unspecified'],
    ['0.255.255.255', 'unspecified'],
    ['10.0.0.0', 'private'],
    ['10.255.255.255', 'private'],
    ['100.64.0.0', 'carrier-grade NAT'],
    ['100.127.255.255', 'carrier-grade NAT'],
    // Metadata of Alibaba Cloud.
    ['100.100.100.200', 'carrier-grade NAT'],
    ['127.0.0.1', 'loopback'],
    ['127.255.255.254', 'loopback'],
    ['168.63.129.16', 'cloud metadata'],
    ['169.254.0.1', 'link-local'],
    // Metadata of AWS, Google, Azure and others.
    ['169.254.169.254', 'link-local'],
    ['169.254.170.2', 'link-local'],
    ['172.16.0.0', 'private'],
    ['172.31.255.255', 'private'],
    ['192.0.0.8', 'reserved for protocols'],
    // Metadata of Oracle Cloud.
    ['192.0.0.192', 'reserved for protocols'],
    ['192.0.2.1', 'for documentation'],
    ['192.88.99.1', 'a 6to4 relay'],
    ['192.168.0.0', 'private'],
    ['192.168.255.255', 'private'],
    ['198.18.0.0', 'for benchmarks'],
    ['198.19.255.255', 'for benchmarks'],
    ['198.51.100.7', 'for documentation'],
    ['203.0.113.7', 'for documentation'],
    ['224.0.0.1', 'multicast'],
    ['239.255.255.255', 'multicast'],
    ['240.0.0.1', 'reserved'],
    ['255.255.255.255', 'broadcast'],

    ['::', 'unspecified'],
    ['0:0:0:0:0:0:0:0', 'unspecified'],
    ['::1', 'loopback'],
    ['0:0:0:0:0:0:0:1', 'loopback'],
    ['0000:0000:0000:0000:0000:0000:0000:0001', 'loopback'],
    ['100::1', 'discarded'],
    ['2001::1', 'reserved for protocols'],
    // Teredo: its server and its client, both IPv4.
    ['2001:0:7f00:1::1', 'reserved for protocols'],
    ['2001:2::1', 'reserved for protocols'],
    ['2001:10::1', 'reserved for protocols'],
    ['2001:db8::1', 'for documentation'],
    ['3fff::1', 'for documentation'],
    ['3fff:fff:ffff::1', 'for documentation'],
    ['fc00::1', 'unique local'],
    ['fdff:ffff::1', 'unique local'],
    // Metadata of AWS.
    ['fd00:ec2::254', 'unique local'],
    ['fe80::1', 'link-local'],
    ['fe80::1%eth0', 'link-local'],
    ['febf::1', 'link-local'],
    ['fec0::1', 'site-local'],
    ['feff::1', 'site-local'],
    ['ff02::1', 'multicast'],
    ['ff0e::1', 'multicast'],
    ['4000::1', 'reserved'],
    ['5f00::1', 'reserved'],
    ['1fff::1', 'reserved'],
    ['f000::1', 'reserved'],

    // IPv4-mapped
    ['::ffff:127.0.0.1', 'loopback'],
    ['::ffff:7f00:1', 'loopback'],
    ['::FFFF:7F00:0001', 'loopback'],
    ['0:0:0:0:0:ffff:a00:1', 'private'],
    ['::ffff:169.254.169.254', 'link-local'],
    ['::ffff:0.0.0.0', 'unspecified'],
    ['::ffff:100.64.0.1', 'carrier-grade NAT'],
    ['::ffff:224.0.0.1', 'multicast'],
    // IPv4-translated
    ['::ffff:0:127.0.0.1', 'loopback'],
    ['::ffff:0:a00:1', 'private'],
    // IPv4-compatible: deprecated and unassigned
    ['::127.0.0.1', 'reserved'],
    ['::8.8.8.8', 'reserved'],
    // NAT64
    ['64:ff9b::127.0.0.1', 'loopback'],
    ['64:ff9b::a00:1', 'private'],
    ['64:ff9b::a9fe:a9fe', 'link-local'],
    ['64:ff9b:1::1', 'NAT64 of a local network'],
    ['64:ff9b:1:ffff::8.8.8.8', 'NAT64 of a local network'],
    ['64:ff9b:2::1', 'reserved'],
    // 6to4
    ['2002:7f00:1::1', 'loopback'],
    ['2002:a00:1::', 'private'],
    ['2002:c0a8:101:1::1', 'private'],
    ['2002:a9fe:a9fe::1', 'link-local'],
    ['2002:e000:1::1', 'multicast'],

    ['', 'no address'],
    ['localhost', 'no address'],
    ['127.1', 'no address'],
    ['256.1.1.1', 'no address'],
    [':::1', 'no address'],
  ])('%s is %s', (address, what) => expect(specialAddress(address)).toBe(what));
});

describe('a URL', () => {
  it.each(['https://shop.example/hooks', 'http://shop.example:8080/hooks?shop=1', 'https://xn--bcher-kva.example/'])(
    '%s',
    (url) => expect(urlFault(url)).toBeNull(),
  );

  it.each([
    ['', 'must be a URL'],
    ['shop.example/hooks', 'must be a URL'],
    ['http://', 'must be a URL'],
    ['http://[::1', 'must be a URL'],
    ['http://1.2.3.256/', 'must be a URL'],
    ['ftp://shop.example/', 'must be https: or http:'],
    ['file:///etc/passwd', 'must be https: or http:'],
    ['gopher://127.0.0.1:6379/_', 'must be https: or http:'],
    ['javascript:alert(1)', 'must be https: or http:'],
    ['https://user:pass@shop.example/', 'must not contain a user or password'],
    ['https://user@shop.example/', 'must not contain a user or password'],
    ['https://shop.example/#part', 'must not contain a fragment: it would not be sent'],
    ['https://shop.example:0/', 'must not have port 0'],
    [`https://shop.example/${'x'.repeat(2048)}`, 'must have at most 2048 characters'],
    [`https://shop.example/${'ü'.repeat(1000)}`, 'must have at most 2048 characters'],
  ])('%s %s', (url, fault) => expect(urlFault(url)).toBe(fault));
});

describe('where a URL leads', () => {
  const dns: Record<string, string[]> = {
    'shop.example': ['93.184.215.14', '2606:2800:21f:cb07::1'],
    'inside.example': ['10.1.2.3'],
    'both.example': ['93.184.215.14', '127.0.0.1'],
    'mapped.example': ['::ffff:192.168.0.1'],
    'nothing.example': [],
    localhost: ['127.0.0.1', '::1'],
    'localhost.': ['127.0.0.1'],
  };
  const resolve: Resolve = async (hostname) => {
    const addresses = dns[hostname];
    if (addresses === undefined) throw Object.assign(new Error('no'), { code: 'ENOTFOUND' });
    return addresses.map((address) => ({ address, family: address.includes(':') ? 6 : 4 }));
  };
  const reason = async (url: string, allowPrivate = false): Promise<string | null> => {
    const target = await targetOf(url, resolve, allowPrivate);
    return target.ok ? null : target.reason;
  };

  it('is all its addresses, if every one of them is public', async () => {
    expect(await targetOf('https://shop.example/x', resolve, false)).toEqual({
      ok: true,
      addresses: [
        { address: '93.184.215.14', family: 4 },
        { address: '2606:2800:21f:cb07::1', family: 6 },
      ],
    });
    expect(await targetOf('http://8.8.8.8/', resolve, false)).toEqual({
      ok: true,
      addresses: [{ address: '8.8.8.8', family: 4 }],
    });
  });

  it.each([
    ['http://inside.example/', '10.1.2.3'],
    ['http://both.example/', '127.0.0.1'],
    ['http://mapped.example/', '::ffff:192.168.0.1'],
    ['http://localhost/', '127.0.0.1'],
    ['http://LOCALHOST./', '127.0.0.1'],
    ['http://127.0.0.1:6379/', '127.0.0.1'],
    // Other ways to write the same.
    ['http://127.1/', '127.0.0.1'],
    ['http://2130706433/', '127.0.0.1'],
    ['http://0x7f.0x0.0x0.0x1/', '127.0.0.1'],
    ['http://0177.0.0.1/', '127.0.0.1'],
    ['http://127.0.0.1./', '127.0.0.1'],
    ['http://0/', '0.0.0.0'],
    ['http://１２７.０.０.１/', '127.0.0.1'],
    ['http://[::1]/', '::1'],
    ['http://[::ffff:127.0.0.1]/', '::ffff:7f00:1'],
    ['http://[2002:7f00:1::]/', '2002:7f00:1::'],
    ['http://169.254.169.254/latest/meta-data', '169.254.169.254'],
  ])('is refused: %s leads to %s', async (url, address) => {
    expect(await reason(url)).toContain(address);
    expect(await reason(url)).toContain('not a public address');
    expect(await reason(url, true), 'unless it is allowed').toBeNull();
  });

  it('is nowhere if the host is unknown', async () => {
    expect(await reason('http://unknown.example/')).toBe('its host cannot be resolved (ENOTFOUND)');
    expect(await reason('http://nothing.example/')).toBe('its host has no address');
    expect(await reason('http://unknown.example/', true)).toBe('its host cannot be resolved (ENOTFOUND)');
  });

  it('is not resolved for an invalid URL', async () => {
    expect(await reason('ftp://shop.example/', true)).toBe('must be https: or http:');
  });
});
