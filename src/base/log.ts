import { pino } from 'pino';
import type { Logger } from './logger.ts';

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
