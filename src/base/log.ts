import { type Logger, pino } from 'pino';

export type { Logger } from 'pino';

/** What must never reach a log, whoever logs it. */
const SECRETS = [
  'authorization',
  'headers.authorization',
  'req.headers.authorization',
  'adminKey',
  'authSecret',
  'token',
];

export function createLog(level: string): Logger {
  return pino({ level, redact: { paths: SECRETS, censor: '[secret]' }, base: null });
}

/** For embedding: a library says nothing unless asked to. */
export function silentLog(): Logger {
  return pino({ level: 'silent' });
}
