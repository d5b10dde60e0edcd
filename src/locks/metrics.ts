/**
 * Prometheus metrics of the locks of this process. Labelled by the kind of lock and never by its name: names are without
 * bound.
 *
 *   doorbuster_lock_attempts_total{kind}            calls that asked for a lock
 *   doorbuster_lock_acquisitions_total{kind}        … and got it
 *   doorbuster_lock_failures_total{kind,reason}     … and did not: held, timeout, aborted, unavailable
 *   doorbuster_lock_lost_total{kind,reason}         lost while held: expired, refused, forced, max_hold, closed
 *   doorbuster_lock_wait_seconds{kind}              from the call to the lock, for those that got it
 *   doorbuster_lock_hold_seconds{kind}              from the lock to its release or loss
 *   doorbuster_lock_held                            locks that this process holds now
 *   doorbuster_lock_waiting                         calls of this process that wait for a lock now
 *   doorbuster_lock_crossed_total                   pairs of locks found to be taken in crossed order: alert on any
 *   doorbuster_lock_jobs_total{outcome}             runs of leader and schedule: done, failed, lost, stopped
 *   doorbuster_lock_jobs_skipped_total{reason}      … and those left to others
 *
 * Attempts less acquisitions and failures are calls of `once` that got a kept result, and calls under way.
 */
import type * as PromClient from 'prom-client';
import type { Counter, Histogram, Registry } from 'prom-client';
import { TerminalError } from '../base/errors.ts';
import { Locks } from './locks.ts';
import { optionalPackage } from './optional.ts';

const WAIT_BUCKETS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60];
const HOLD_BUCKETS = [
  0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800,
];

/** The metrics of one registry: all clients that are observed with it add to the same. */
class LockMetrics {
  readonly observed = new Set<Locks>();
  readonly attempts: Counter<'kind'>;
  readonly acquisitions: Counter<'kind'>;
  readonly failures: Counter<'kind' | 'reason'>;
  readonly lost: Counter<'kind' | 'reason'>;
  readonly wait: Histogram<'kind'>;
  readonly hold: Histogram<'kind'>;
  readonly crossed: Counter;
  readonly jobs: Counter<'outcome'>;
  readonly skipped: Counter<'reason'>;

  constructor({ Counter, Gauge, Histogram }: typeof PromClient, registry: Registry) {
    const registers = [registry];
    this.attempts = new Counter({
      name: 'doorbuster_lock_attempts_total',
      help: 'Calls that asked for a lock',
      labelNames: ['kind'],
      registers,
    });
    this.acquisitions = new Counter({
      name: 'doorbuster_lock_acquisitions_total',
      help: 'Calls that got the lock',
      labelNames: ['kind'],
      registers,
    });
    this.failures = new Counter({
      name: 'doorbuster_lock_failures_total',
      help: 'Calls that ended without the lock',
      labelNames: ['kind', 'reason'],
      registers,
    });
    this.lost = new Counter({
      name: 'doorbuster_lock_lost_total',
      help: 'Locks that were lost while held',
      labelNames: ['kind', 'reason'],
      registers,
    });
    this.wait = new Histogram({
      name: 'doorbuster_lock_wait_seconds',
      help: 'Time from the call to the lock',
      labelNames: ['kind'],
      buckets: WAIT_BUCKETS,
      registers,
    });
    this.hold = new Histogram({
      name: 'doorbuster_lock_hold_seconds',
      help: 'Time from the lock to its release or loss',
      labelNames: ['kind'],
      buckets: HOLD_BUCKETS,
      registers,
    });
    this.crossed = new Counter({
      name: 'doorbuster_lock_crossed_total',
      help: 'Pairs of locks found to be taken in crossed order: alert on any',
      registers,
    });
    this.jobs = new Counter({
      name: 'doorbuster_lock_jobs_total',
      help: 'Runs of leaders and schedules, by what became of them',
      labelNames: ['outcome'],
      registers,
    });
    this.skipped = new Counter({
      name: 'doorbuster_lock_jobs_skipped_total',
      help: 'Runs of jobs that were left to others, or missed',
      labelNames: ['reason'],
      registers,
    });
    const { observed } = this;
    gauge('doorbuster_lock_held', 'Locks that this process holds', (locks) => Locks.clientOf(locks).holding.count);
    gauge('doorbuster_lock_waiting', 'Calls of this process that wait for a lock', (locks) => {
      return Locks.clientOf(locks).asking.count;
    });

    function gauge(name: string, help: string, read: (locks: Locks) => number): void {
      new Gauge({
        name,
        help,
        registers,
        collect() {
          let sum = 0;
          for (const locks of observed) sum += read(locks);
          this.set(sum);
        },
      });
    }
  }

  observe(locks: Locks): () => void {
    this.observed.add(locks);
    const stops = [
      locks.on('asked', ({ kind }) => this.attempts.inc({ kind })),
      locks.on('acquired', ({ kind, waitedMs }) => {
        this.acquisitions.inc({ kind });
        this.wait.observe({ kind }, waitedMs / 1000);
      }),
      locks.on('failed', ({ kind, reason }) => this.failures.inc({ kind, reason })),
      locks.on('released', ({ kind, heldMs }) => this.hold.observe({ kind }, heldMs / 1000)),
      locks.on('lost', ({ kind, reason, heldMs }) => {
        this.lost.inc({ kind, reason });
        this.hold.observe({ kind }, heldMs / 1000);
      }),
      locks.on('crossed', () => this.crossed.inc()),
      locks.on('ended', ({ outcome }) => this.jobs.inc({ outcome })),
      locks.on('skipped', ({ reason }) => this.skipped.inc({ reason })),
    ];
    return () => {
      this.observed.delete(locks);
      for (const stop of stops) stop();
    };
  }
}

const metricsOf = new WeakMap<Registry, LockMetrics>();

/**
 * Counts what `locks` does, in `registry` (prom-client's default one if none is given; the package is needed in any case). Several
 * clients may be observed with one registry: their numbers are summed. The returned function ends it; what was counted stays.
 */
export function observeLocks(locks: Locks, registry?: Registry): () => void {
  if (!(locks instanceof Locks)) {
    throw new TerminalError('invalid_argument', 'observeLocks takes what createLocks has returned');
  }
  if (registry !== undefined && typeof registry?.getSingleMetric !== 'function') {
    throw new TerminalError('invalid_argument', 'the registry of observeLocks must be a Registry of prom-client');
  }
  const client = optionalPackage<typeof PromClient>('prom-client', 'observeLocks');
  return metricsIn(registry ?? client.register, client).observe(locks);
}

function metricsIn(registry: Registry, client: typeof PromClient): LockMetrics {
  let metrics = metricsOf.get(registry);
  // A registry that was cleared (tests do that) has forgotten them.
  if (!metrics || registry.getSingleMetric('doorbuster_lock_attempts_total') !== metrics.attempts) {
    metrics = new LockMetrics(client, registry);
    metricsOf.set(registry, metrics);
  }
  return metrics;
}
