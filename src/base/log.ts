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

const STDOUT = 1;
const STDERR = 2;

/** `aside`: stdout belongs to a person, and the lines go to stderr. */
export function createLog(level: string, { aside = false } = {}): Logger {
  const lines = pino.destination({ dest: aside ? STDERR : STDOUT, sync: true });
  return pino({ level, redact: { paths: SECRETS, censor: '[secret]' }, base: null }, lines);
}

/** A start that waits for a server or a disk: whoever reads the log alone must not miss it. */
export function tellWaiting(log: Logger, reason: string): void {
  log.error({ reason }, 'the shop cannot be opened yet; it is tried every second');
}

/** Said at every level: what somebody who starts the process waits for. As a line of the log, since stdout has no others. */
export function announce(log: Logger, said: object, message: string): void {
  log.child({}, { level: 'info' }).info(said, message);
}
