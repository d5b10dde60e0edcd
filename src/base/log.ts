import { pino } from 'pino';
import type { Logger } from './logger.ts';

/** Fields that must never appear in a log. */
const SECRETS = [
  'authorization',
  'headers.authorization',
  'req.headers.authorization',
  'adminKey',
  'authSecret',
  'token',
];

const STDOUT = 1;
const STDERR = 2;

/** `aside`: write to stderr, because stdout is for a person to read. */
export function createLog(level: string, { aside = false } = {}): Logger {
  const lines = pino.destination({ dest: aside ? STDERR : STDOUT, sync: true });
  return pino({ level, redact: { paths: SECRETS, censor: '[secret]' }, base: null }, lines);
}

/** Logs that the start waits for a server or a disk, for operators who read only the log. */
export function tellWaiting(log: Logger, reason: string): void {
  log.error({ reason }, 'the shop cannot be opened yet; retrying every second');
}

/** Logs at every level what whoever starts the process waits for. A log line, because stdout contains nothing else. */
export function announce(log: Logger, said: object, message: string): void {
  log.child({}, { level: 'info' }).info(said, message);
}
