import { createHmac, timingSafeEqual } from 'node:crypto';

/** `t=<unix seconds>,v1=<hex HMAC-SHA256 of "t.body">`: for webhooks in and out. */
export const SIGNATURE_HEADER = 'doorbuster-signature';

/** Older (or further ahead) than this, a message may be one that somebody has recorded. */
export const SIGNATURE_SECONDS_MAX = 300;

export function sign(secret: string, body: string, nowMs: number): string {
  const seconds = Math.floor(nowMs / 1000);
  return `t=${seconds},v1=${hmac(secret, seconds, body)}`;
}

/** Null if it is right; else why not. Several `v1` may be given while a secret is changed. */
export function signatureFault(
  secrets: readonly string[],
  body: string,
  header: string | undefined,
  nowMs: number,
): string | null {
  if (header === undefined) return `the header ${SIGNATURE_HEADER} is missing`;
  const parts = header.split(',').map((part) => part.trim().split('=', 2) as [string, string?]);
  const time = parts.find(([name]) => name === 't')?.[1];
  if (time === undefined || !/^\d{1,12}$/.test(time)) return 'the signature has no time';
  const seconds = Number(time);
  const given = parts.flatMap(([name, value]) => (name === 'v1' && value !== undefined ? [value] : []));
  const right = secrets.some((secret) => {
    const expected = Buffer.from(hmac(secret, seconds, body));
    return given.some((value) => {
      const actual = Buffer.from(value);
      return actual.length === expected.length && timingSafeEqual(actual, expected);
    });
  });
  if (!right) return 'the signature is wrong';
  if (Math.abs(nowMs / 1000 - seconds) > SIGNATURE_SECONDS_MAX) return 'the signature is too old';
  return null;
}

function hmac(secret: string, seconds: number, body: string): string {
  return createHmac('sha256', secret).update(`${seconds}.${body}`).digest('hex');
}
