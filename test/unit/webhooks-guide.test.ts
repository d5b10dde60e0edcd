import { createHmac, timingSafeEqual } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import { sign } from '../../src/base/signature.ts';

it('the code of docs/guides/webhooks.md takes what is signed, and nothing else', () => {
  const page = readFileSync(new URL('../../docs/guides/webhooks.md', import.meta.url), 'utf8');
  const code = /^```js\n(.*?)^```$/ms.exec(page)![1]!;
  const check = code.slice(code.indexOf('function isGenuine'), code.indexOf('createServer(async'));
  const make = new Function('secret', 'createHmac', 'timingSafeEqual', `${check} return isGenuine;`);
  const isGenuine = make('whsec_1', createHmac, timingSafeEqual) as (header: unknown, body: string) => boolean;

  const body = '{"id":"1-2","who":"Zoë 🎟"}';
  const header = sign('whsec_1', body, Date.now());
  expect(isGenuine(header, body)).toBe(true);
  expect(isGenuine(header, `${body} `)).toBe(false);
  expect(isGenuine(sign('whsec_2', body, Date.now()), body)).toBe(false);
  expect(isGenuine(sign('whsec_1', body, Date.now() - 301_000), body)).toBe(false);
  expect(isGenuine(sign('whsec_1', body, Date.now() + 302_000), body)).toBe(false);
  for (const odd of [
    undefined,
    '',
    't=',
    't=1',
    'v1=ab',
    'nonsense',
    header.replace('v1', 'v0'),
    header.slice(0, -2),
  ]) {
    expect(isGenuine(odd, body)).toBe(false);
  }
});
