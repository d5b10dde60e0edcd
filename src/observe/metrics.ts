import { Counter, Gauge, Histogram, Registry } from 'prom-client';
import { FastHistogram } from './fast-histogram.ts';

/** Values that are read at each scrape. */
export interface MetricSources {
  pipeDepth: () => number;
  ledgerBacklog: () => number;
  unresolved: () => number;
  /** Orders answered 202 and not decided yet; absent in a deployment without 202. */
  owed?: () => number;
  deadLetters?: () => number;
  /**
   * Likes in their pipe; likes that the ledger could not store; posts and comments that this process has shown as they are stored. Absent
   * where Redis does not count likes.
   */
  likes?: () => { waiting: number; letters: number; asStored: number };
  /** Entries that this process carried to the broker; absent without a broker. */
  relay?: () => { relayed: number; resent: number; recovered: number };
  /** Payments that did not settle at the last attempt, of those that this process handles. */
  unsettled: () => { stranded: number; owedMoney: number };
  /** Ended orders whose units the gate has not got back, of those that this process handles. */
  releases: () => { waiting: number; oldestMs: number };
  ready: () => boolean;
}

/**
 * The shop's metrics. Admissions are counted in plain numbers and handed to prom-client only at a scrape: hashing labels on
 * every request cost more than the gate's decision.
 */
export class Metrics {
  readonly registry = new Registry();
  readonly #admissions = new Map<string, number>();
  readonly #batchSize;
  readonly #commitSeconds;
  readonly requests = new FastHistogram(
    'doorbuster_http_request_seconds',
    'Time from the first byte of a request to the end of its answer',
    ['method', 'route', 'status'],
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5],
  );
  readonly #rebuilds;
  readonly #rebuildSeconds;
  readonly #backstops;
  readonly #gateRebuilt;
  readonly #webhookTries;

  constructor(sources: MetricSources) {
    const registers = [this.registry];
    const admissions = this.#admissions;
    new Counter({
      name: 'doorbuster_admissions_total',
      help: 'Requested orders, by outcome',
      labelNames: ['outcome'],
      registers,
      collect() {
        this.reset();
        for (const [outcome, count] of admissions) this.inc({ outcome }, count);
      },
    });
    this.#batchSize = new Histogram({
      name: 'doorbuster_commit_batch_orders',
      help: 'Orders in one commit',
      buckets: [1, 2, 4, 8, 16, 32, 64, 128, 256, 512],
      registers,
    });
    this.#commitSeconds = new Histogram({
      name: 'doorbuster_commit_seconds',
      help: 'Duration of a commit until it is on disk',
      buckets: [0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1],
      registers,
    });
    this.#rebuilds = new Counter({
      name: 'doorbuster_gate_rebuilds_total',
      help: 'Rebuilds of a gate from the ledger',
      registers,
    });
    this.#rebuildSeconds = new Histogram({
      name: 'doorbuster_gate_rebuild_seconds',
      help: 'How long a sale was unavailable while its gate was rebuilt',
      buckets: [0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60],
      registers,
    });
    this.#gateRebuilt = new Counter({
      name: 'doorbuster_orders_gate_rebuilt_total',
      help: 'Accepted orders that were rejected because their gate was rebuilt before the ledger had stored them: alert on any',
      registers,
    });
    this.#backstops = new Counter({
      name: 'doorbuster_backstop_rejections_total',
      help: 'Orders that the gate admitted and the ledger refused: alert on any',
      labelNames: ['reason'],
      registers,
    });
    this.#webhookTries = new Counter({
      name: 'doorbuster_webhook_tries_total',
      help: 'Attempts to send a webhook, by outcome: alert on any failed (given up)',
      labelNames: ['outcome'],
      registers,
    });
    gauge('doorbuster_pipe_orders', 'Admitted orders that the ledger has not decided', sources.pipeDepth);
    gauge(
      'doorbuster_ledger_tail_orders',
      'Committed orders not yet folded into the lookup tables',
      sources.ledgerBacklog,
    );
    gauge(
      'doorbuster_unresolved_orders',
      'Orders whose commit failed and whose outcome is not known yet',
      sources.unresolved,
    );
    if (sources.owed)
      gauge(
        'doorbuster_owed_orders',
        'Orders that this process answered 202 and that are not decided yet',
        sources.owed,
      );
    if (sources.deadLetters)
      gauge('doorbuster_dead_letters', 'Messages that the ledger could not store: alert on any', sources.deadLetters);
    const { likes } = sources;
    if (likes) {
      gauge('doorbuster_pipe_likes', 'Decided likes that the ledger has not stored', () => likes().waiting);
      gauge('doorbuster_like_letters', 'Likes that the ledger could not store: alert on any', () => likes().letters);
      new Counter({
        name: 'doorbuster_likes_shown_as_stored_total',
        help: 'Posts and comments shown with the stored likes, because Redis did not answer for them',
        registers,
        collect() {
          this.reset();
          this.inc(likes().asStored);
        },
      });
    }
    const { relay } = sources;
    if (relay) {
      new Counter({
        name: 'doorbuster_relay_entries_total',
        help: 'Entries sent to the broker; resent: the earlier confirmation is unknown; recovered: the broker lost it',
        labelNames: ['outcome'],
        registers,
        collect() {
          this.reset();
          for (const [outcome, count] of Object.entries(relay())) this.inc({ outcome }, count);
        },
      });
    }
    new Gauge({
      name: 'doorbuster_payments_unsettled',
      help: 'stranded: units are held because the provider does not answer; owedMoney: money without goods, not refunded yet',
      labelNames: ['kind'],
      registers,
      collect() {
        for (const [kind, count] of Object.entries(sources.unsettled())) this.set({ kind }, count);
      },
    });
    gauge('doorbuster_releases_waiting', 'Ended orders whose units the gate has not got back', () => {
      return sources.releases().waiting;
    });
    gauge('doorbuster_releases_oldest_seconds', 'How long the oldest of the waiting releases has waited', () => {
      return sources.releases().oldestMs / 1000;
    });
    gauge('doorbuster_ready', '1 while the shop accepts orders, otherwise 0', () => (sources.ready() ? 1 : 0));
    this.registry.registerMetric(this.requests as never);

    function gauge(name: string, help: string, read: () => number): void {
      new Gauge({
        name,
        help,
        registers,
        collect() {
          this.set(read());
        },
      });
    }
  }

  admission(outcome: string): void {
    this.#admissions.set(outcome, (this.#admissions.get(outcome) ?? 0) + 1);
  }

  commit(orders: number, durationMs: number): void {
    this.#batchSize.observe(orders);
    this.#commitSeconds.observe(durationMs / 1000);
  }

  rebuilt(pauseMs: number): void {
    this.#rebuilds.inc();
    this.#rebuildSeconds.observe(pauseMs / 1000);
  }

  backstop(reason: string): void {
    this.#backstops.inc({ reason });
    if (reason === 'gate_rebuilt') this.lostToRebuild();
  }

  /** Counts an accepted order that did not reach the ledger before its gate was replaced. */
  lostToRebuild(): void {
    this.#gateRebuilt.inc();
  }

  webhookTry(outcome: 'delivered' | 'retried' | 'failed'): void {
    this.#webhookTries.inc({ outcome });
  }

  /** `quantiles` returns milliseconds. */
  eventLoopDelay(quantiles: () => { p50: number; p99: number; max: number }): void {
    new Gauge({
      name: 'doorbuster_event_loop_delay_seconds',
      help: 'Delay of the event loop since the last scrape, including commits of the ledger',
      labelNames: ['quantile'],
      registers: [this.registry],
      collect() {
        const { p50, p99, max } = quantiles();
        this.set({ quantile: '0.5' }, p50 / 1000);
        this.set({ quantile: '0.99' }, p99 / 1000);
        this.set({ quantile: '1' }, max / 1000);
      },
    });
  }
}
