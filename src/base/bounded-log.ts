import type { Clock } from './clock.ts';
import type { Logger } from './logger.ts';
import type { Timers } from './timers.ts';

/** Lines of one kind per second. The first ones say what happens; after that only their number matters. */
const LINES_MAX = 10;
const WINDOW_MS = 1000;
/** Kinds that are counted separately. A message with a variable part would make every line a new kind. */
const KINDS_MAX = 500;
const LEVELS = ['info', 'warn', 'error', 'fatal'] as const;

type Level = (typeof LEVELS)[number];

interface Kind {
  level: Level;
  lines: number;
}

/**
 * A log that callers cannot flood: it writes at most 10 lines of one kind (level and message) per second, and reports the
 * number of the others in one line at the end of the second. `debug` and `trace` are not bounded.
 */
export function boundedLog<L extends Pick<Logger, Level>>(log: L, clock: Clock, timers: Timers): L {
  const bounded = Object.create(log) as L;
  let kinds = new Map<string, Kind>();
  let startedMs = Number.NEGATIVE_INFINITY;
  let reporting = false;

  const report = (): void => {
    reporting = false;
    const ended = kinds;
    kinds = new Map();
    startedMs = Number.NEGATIVE_INFINITY;
    for (const [kind, { level, lines }] of ended) {
      const more = lines - LINES_MAX;
      if (more > 0) log[level]({ more }, `${kind.slice(kind.indexOf(':') + 1)} … ${more} more`);
    }
  };

  for (const level of LEVELS) {
    // `this` may be a child logger with its own bindings.
    const write = function (this: L, ...line: unknown[]): void {
      const message = typeof line[0] === 'string' ? line[0] : typeof line[1] === 'string' ? line[1] : '';
      const nowMs = clock.monotonic();
      if (!reporting && nowMs - startedMs >= WINDOW_MS) {
        kinds = new Map();
        startedMs = nowMs;
      }
      let kind = kinds.get(`${level}:${message}`);
      if (kind === undefined) {
        const name = kinds.size < KINDS_MAX ? `${level}:${message}` : `${level}:other lines`;
        kind = kinds.get(name) ?? { level, lines: 0 };
        kinds.set(name, kind);
      }
      kind.lines++;
      if (kind.lines <= LINES_MAX) {
        (log[level] as (...line: unknown[]) => void).apply(this, line);
      } else if (!reporting) {
        reporting = true;
        timers.after(Math.max(startedMs + WINDOW_MS - nowMs, 0), report);
      }
    };
    // Writable, because pino assigns these methods on a child with its own level.
    Object.defineProperty(bounded, level, { value: write, writable: true, configurable: true });
  }
  return bounded;
}
