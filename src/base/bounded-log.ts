import type { Clock } from './clock.ts';
import type { Logger } from './logger.ts';
import type { Timers } from './timers.ts';

/** Lines of one kind in a second. The first ones tell what happens; how often it happens is a number. */
const LINES_MAX = 10;
const WINDOW_MS = 1000;
/** Kinds that are told apart; a text with a changing part in it makes a new kind of every line. */
const KINDS_MAX = 500;
const LEVELS = ['info', 'warn', 'error', 'fatal'] as const;

type Level = (typeof LEVELS)[number];

interface Kind {
  level: Level;
  lines: number;
}

/**
 * A log that a caller cannot fill: at most 10 lines of one kind, which is level and message, in a second; the rest is
 * counted and said in one line at the second's end. `debug` and `trace` are for somebody who wants every line.
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
    // `this` may be a child of the log, with bindings of its own.
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
    // Writable: a child with a level of its own sets its own.
    Object.defineProperty(bounded, level, { value: write, writable: true, configurable: true });
  }
  return bounded;
}
