import { boundedLog } from './bounded-log.ts';
import { type Clock, systemClock } from './clock.ts';
import { type Logger, silentLog } from './logger.ts';
import { type Random, systemRandom } from './random.ts';
import { systemTimers, type Timers } from './timers.ts';

/** Clock, timers, randomness and log, passed down from the composition root. */
export interface Runtime {
  clock: Clock;
  timers: Timers;
  random: Random;
  log: Logger;
}

export function systemRuntime(log: Logger = silentLog()): Runtime {
  const bounded = boundedLog(log, systemClock, systemTimers);
  return { clock: systemClock, timers: systemTimers, random: systemRandom, log: bounded };
}
