import { createHmac, timingSafeEqual } from 'node:crypto';

/** `t=<unix seconds>,v1=<hex HMAC-SHA256 of "t.body">`: for webhooks in and out. */
export const SIGNATURE_HEADER = 'doorbuster-signature';

/** Older (or further ahead) than this, a message may be one that somebody has recorded. */
export const SIGNATURE_SECONDS_MAX = 300;

const HASH = /^[0-9a-f]{64}$/;

export function sign(secret: string, body: string, nowMs: number): string {
  const seconds = Math.floor(nowMs / 1000);
  return `t=${seconds},v1=${hmac(secret, seconds, body)}`;
}

interface Signature {
  seconds: number;
  /** Several while a secret is changed. */
  given: string[];
}

/** What the header alone tells: a text says why it cannot be right, whatever the body. So a body need not be read for it. */
export function readSignature(header: string | undefined, nowMs: number): Signature | string {
  if (header === undefined) return `the header ${SIGNATURE_HEADER} is missing`;
  const parts = header.split(',').map((part) => part.trim().split('=', 2) as [string, string?]);
  const time = parts.find(([name]) => name === 't')?.[1];
  if (time === undefined || !/^\d{1,12}$/.test(time)) return 'the signature has no time';
  const seconds = Number(time);
  const given = parts.flatMap(([name, value]) => (name === 'v1' && value !== undefined ? [value] : []));
  if (!given.some((value) => HASH.test(value))) return 'the signature has no v1 of 64 hex digits';
  if (Math.abs(nowMs / 1000 - seconds) > SIGNATURE_SECONDS_MAX) return 'the signature is too old';
  return { seconds, given };
}

/** Null if it is right; else why not. */
export function signatureFault(
  secrets: readonly string[],
  body: string,
  header: string | undefined,
  nowMs: number,
): string | null {
  const signature = readSignature(header, nowMs);
  if (typeof signature === 'string') return signature;
  const { seconds, given } = signature;
  const right = secrets.some((secret) => {
    const expected = Buffer.from(hmac(secret, seconds, body));
    return given.some((value) => {
      const actual = Buffer.from(value);
      return actual.length === expected.length && timingSafeEqual(actual, expected);
    });
  });
  return right ? null : 'the signature is wrong';
}

function hmac(secret: string, seconds: number, body: string): string {
  return createHmac('sha256', secret).update(`${seconds}.${body}`).digest('hex');
}
