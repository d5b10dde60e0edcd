// The engine's own worker, with probes at its ledger and its carrier.
import { KeepAlive } from '../../src/base/keep-alive.ts';
import { createLog } from '../../src/base/log.ts';
import { systemRuntime } from '../../src/base/runtime.ts';
import { DistributedShop } from '../../src/engine/distributed.ts';
import { carrierOf } from '../../src/engine/open.ts';
import { openSqlLedger } from '../../src/ledger/drivers/open.ts';
import type { Ledger } from '../../src/ledger/port.ts';
import type { Carrier } from '../../src/pipe/brokers/port.ts';
import type { Parcel } from '../../src/pipe/parcel.ts';
import { jobOf, nowMs, serve } from './child.ts';
import { FIRST_ID, numberOf, type Stage, Track } from './pace.ts';

export interface WorkerJob {
  readonly redis: string;
  readonly prefix: string;
  readonly database: string;
  /** Null: Redis Streams. */
  readonly pipeUrl: string | null;
}

export interface Counts {
  batches: number;
  parcels: number;
  /** Summed over all commits, concurrent ones included. */
  commitMs: number;
}

/** Records when batches were handed to the ledger and when they were committed. */
export function listenAtLedger(ledger: Ledger, track: Track, counts: Counts): void {
  const commit = ledger.commitOrders.bind(ledger);
  ledger.commitOrders = async (batch) => {
    const handedMs = nowMs();
    const stored = await commit(batch);
    const committedMs = nowMs();
    counts.batches++;
    counts.commitMs += committedMs - handedMs;
    if (track.on) {
      for (const { key } of batch) {
        const n = numberOf(key);
        track.mark('handed', n, handedMs);
        track.mark('committed', n, committedMs);
      }
    }
    return stored;
  };
}

function listenAtCarrier(carrier: Carrier, track: Track, counts: Counts): void {
  const send = carrier.send.bind(carrier);
  const receive = carrier.receive.bind(carrier);
  const mark = (stage: Stage, { fields }: Parcel): void => {
    const atMs = nowMs();
    // Field names: empty for the head, `i…` for an item, otherwise the id of an order.
    for (let at = 0; at < (fields?.length ?? 0); at += 2) {
      if (/^\d/.test(fields![at]!)) track.mark(stage, Number(fields![at]) - FIRST_ID, atMs);
    }
  };
  carrier.send = (partition, parcels) => {
    counts.parcels += parcels.length;
    if (track.on) for (const parcel of parcels) mark('relayed', parcel);
    return send(partition, parcels);
  };
  carrier.receive = (deliver) =>
    receive((delivery) => {
      if (track.on && delivery.parcel !== null) mark('arrived', delivery.parcel);
      deliver(delivery);
    });
}

async function work(job: WorkerJob): Promise<void> {
  const { redis, prefix, database, pipeUrl } = job;
  const runtime = systemRuntime(createLog('warn'));
  const track = new Track();
  const counts = { batches: 0, parcels: 0, commitMs: 0 };
  const keepAlive = new KeepAlive(runtime.timers);
  keepAlive.hold();
  const ledger = await openSqlLedger(database, runtime, { migrate: false, exclusive: false });
  listenAtLedger(ledger, track, counts);
  const carrier = pipeUrl === null ? null : await carrierOf(pipeUrl, prefix, runtime);
  if (carrier) listenAtCarrier(carrier, track, counts);
  const shop = await DistributedShop.open(
    ledger,
    { redis, prefix, answerWithinMs: 2000, pipeMax: 100_000, worker: true, carrier, writerLock: 'off' },
    runtime,
  );
  serve({
    async record(range: { from: number; count: number }) {
      track.start(range);
    },
    times: async () => track.stop(),
    counts: async () => ({ ...counts }),
    end: () => shop.close(),
  });
}

if (import.meta.main) await work(jobOf<WorkerJob>());
