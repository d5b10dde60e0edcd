// A worker in the way of the sources: a listener of the broker, and one transaction per order.
import { open } from '../baselines/ledger-mysql.ts';
import type { Consumer, ConsumerOptions, HandleOne } from '../baselines/pipe/broker.ts';
import { jobOf, nowMs, serve } from './child.ts';
import { numberOf, Track } from './pace.ts';

export interface OneByOneJob extends ConsumerOptions {
  readonly database: string;
  readonly broker: 'rabbitmq' | 'kafka';
  readonly url: string;
  readonly queue: string;
  /** First count the buyer's orders, as the sources do. */
  readonly counted: boolean;
}

const job = jobOf<OneByOneJob>();
const track = new Track();
const floors = await open(job.database);
const { openConsumer } = (await import(`../baselines/pipe/${job.broker}.ts`)) as {
  openConsumer(url: string, queue: string, options: ConsumerOptions, handle: HandleOne): Promise<Consumer>;
};
const consumer = await openConsumer(job.url, job.queue, job, async (message) => {
  const n = numberOf(message.key);
  if (track.on) track.mark('handed', n, nowMs());
  await floors.placeOne(message, job.counted);
  if (track.on) track.mark('committed', n, nowMs());
});

serve({
  async record(range: { from: number; count: number }) {
    track.start(range);
  },
  times: async () => track.stop(),
  async end() {
    await consumer.end();
    await floors.end();
  },
});
