import { createHmac, timingSafeEqual } from 'node:crypto';

/** `t=<unix seconds>,v1=<hex HMAC-SHA256 of "t.body">`, for incoming and outgoing webhooks. */
export const SIGNATURE_HEADER = 'doorbuster-signature';

/** A message older (or further ahead) than this may be a replay. */
export const SIGNATURE_SECONDS_MAX = 300;

const HASH = /^[0-9a-f]{64}$/;

export function sign(secret: string, body: string, nowMs: number): string {
  const seconds = Math.floor(nowMs / 1000);
  return `t=${seconds},v1=${hmac(secret, seconds, body)}`;
}

interface Signature {
  seconds: number;
  /** Several during a rotation of the secret. */
  given: string[];
}

/** Checks the header without the body. A text says why the signature is invalid: then the body need not be read. */
export function readSignature(header: string | undefined, nowMs: number): Signature | string {
  if (header === undefined) return `the header ${SIGNATURE_HEADER} is missing`;
  const parts = header.split(',').map((part) => part.trim().split('=', 2) as [string, string?]);
  const time = parts.find(([name]) => name === 't')?.[1];
  if (time === undefined || !/^\d{1,12}$/.test(time)) return 'the signature has no time (t=<unix seconds>)';
  const seconds = Number(time);
  const given = parts.flatMap(([name, value]) => (name === 'v1' && value !== undefined ? [value] : []));
  if (!given.some((value) => HASH.test(value))) return 'the signature has no v1 of 64 hex digits';
  if (Math.abs(nowMs / 1000 - seconds) > SIGNATURE_SECONDS_MAX)
    return `the signature’s time is more than ${SIGNATURE_SECONDS_MAX} s off`;
  return { seconds, given };
}

/** Null if the signature is valid, otherwise why not. */
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
