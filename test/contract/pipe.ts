import { beforeEach, describe, expect, it } from 'vitest';
import type { OrderMessage } from '../../src/model/order.ts';
import type { Pipe } from '../../src/pipe/port.ts';

export interface PipeUnderTest {
  pipe: Pipe;
  /** What the gate does in the step of an admission. */
  push(message: OrderMessage): void;
  /** One batch may not be larger. */
  batchMax: number;
  /** Lets everything happen that is due without anybody's doing. */
  idle(): Promise<void>;
}

/** The contract of src/pipe/port.ts. */
export function pipeContract(name: string, make: () => Promise<PipeUnderTest>): void {
  describe(`pipe contract: ${name}`, () => {
    let world: PipeUnderTest;
    let lastId: number;

    beforeEach(async () => {
      world = await make();
      lastId = 0;
    });

    function push(count = 1, saleId = '1'): string[] {
      return Array.from({ length: count }, () => {
        const orderId = String(++lastId);
        world.push({
          orderId,
          saleId,
          itemId: '2',
          itemCode: 'v',
          buyer: 'b',
          quantity: 1,
          slots: [1],
          price: { amount: 1, currency: 'CNY' },
          payWithinSeconds: 1,
          epoch: 1,
          key: null,
          fingerprint: 'f',
        });
        return orderId;
      });
    }

    const idsOf = (batch: readonly OrderMessage[]): string[] => batch.map(({ orderId }) => orderId);

    /** A consumer that takes a batch and finishes it when told. */
    function slowConsumer() {
      const batches: string[][] = [];
      const open: PromiseWithResolvers<void>[] = [];
      world.pipe.consume((batch) => {
        batches.push(idsOf(batch));
        const handling = Promise.withResolvers<void>();
        open.push(handling);
        return handling.promise;
      });
      return {
        batches,
        async finish(error?: Error) {
          const handling = open.shift()!;
          if (error) handling.reject(error);
          else handling.resolve();
          await world.idle();
        },
      };
    }

    it('P3: hands over every message, in order', async () => {
      const seen: string[] = [];
      world.pipe.consume(async (batch) => void seen.push(...idsOf(batch)));
      const sent = [...push(3), ...push(2, '9')];
      await world.idle();
      sent.push(...push(1));
      await world.pipe.drained();
      expect(seen).toEqual(sent);
      expect(world.pipe.depth).toBe(0);
    });

    it('P3: keeps what arrives before there is a consumer', async () => {
      const sent = push(3);
      await world.idle();
      expect(world.pipe.depth).toBe(3);
      const seen: string[] = [];
      world.pipe.consume(async (batch) => void seen.push(...idsOf(batch)));
      await world.idle();
      expect(seen).toEqual(sent);
    });

    it('what arrives together goes together', async () => {
      const { batches } = slowConsumer();
      const sent = push(5);
      await world.idle();
      expect(batches).toEqual([sent]);
    });

    it('hands over one batch at a time; what arrives meanwhile is the next one', async () => {
      const consumer = slowConsumer();
      const first = push(2);
      await world.idle();
      const second = push(1);
      await world.idle();
      second.push(...push(2));
      await world.idle();
      expect(consumer.batches).toEqual([first]);
      expect(world.pipe.depth, 'a message is in the pipe until it is handled').toBe(5);
      await consumer.finish();
      expect(consumer.batches).toEqual([first, second]);
      expect(world.pipe.depth).toBe(3);
      await consumer.finish();
      expect(world.pipe.depth).toBe(0);
    });

    it('a batch is bounded, and the rest follows in order', async () => {
      const consumer = slowConsumer();
      const sent = push(world.batchMax * 2 + 1);
      await world.idle();
      await consumer.finish();
      await consumer.finish();
      await consumer.finish();
      expect(consumer.batches.map((batch) => batch.length)).toEqual([world.batchMax, world.batchMax, 1]);
      expect(consumer.batches.flat()).toEqual(sent);
    });

    it('P3: a consumer that fails does not stop what comes after', async () => {
      const consumer = slowConsumer();
      push(1);
      await world.idle();
      const next = push(2);
      await consumer.finish(new Error('a bug'));
      expect(consumer.batches[1]).toEqual(next);
      await consumer.finish();
      expect(world.pipe.depth).toBe(0);
      const last = push(1);
      await world.idle();
      expect(consumer.batches.at(-1)).toEqual(last);
    });

    it('P3: a consumer that throws at once does not stop what comes after', async () => {
      const seen: string[] = [];
      world.pipe.consume((batch) => {
        seen.push(...idsOf(batch));
        if (seen.length === 1) throw new Error('a bug');
        return Promise.resolve();
      });
      push(1);
      await world.idle();
      push(1);
      await world.pipe.drained();
      expect(seen).toEqual(['1', '2']);
    });

    it('is drained when nothing is in it: at once if it is empty, else after the last batch is handled', async () => {
      await world.pipe.drained();
      const consumer = slowConsumer();
      push(1);
      await world.idle();
      push(1);
      let drained = 0;
      for (let waiter = 0; waiter < 2; waiter++) void world.pipe.drained().then(() => drained++);
      await consumer.finish();
      expect(drained, 'the second batch is being handled').toBe(0);
      await consumer.finish();
      expect(drained).toBe(2);
      await world.pipe.drained();
    });

    it('has caught up when all that was in it has left, whatever has come since', async () => {
      await world.pipe.caughtUp();
      const consumer = slowConsumer();
      push(2);
      await world.idle();
      push(1);
      const heard: string[] = [];
      void world.pipe.caughtUp().then(() => heard.push('caught up'));
      void world.pipe.drained().then(() => heard.push('drained'));
      await consumer.finish();
      expect(heard, 'its last message is being handled').toEqual([]);
      push(1);
      await consumer.finish();
      expect(heard).toEqual(['caught up']);
      await consumer.finish();
      expect(heard).toEqual(['caught up', 'drained']);
    });

    it('catches up also if more is always there', async () => {
      world.pipe.consume(async () => {
        // A crowd: for every batch that is handled another one is waiting.
        if (lastId < 20_000) push(world.batchMax);
      });
      push(1);
      await world.pipe.caughtUp();
      expect(world.pipe.depth).toBeGreaterThan(0);
      expect(lastId).toBeLessThan(5_000);
      await world.pipe.drained();
      expect(world.pipe.depth).toBe(0);
    });

    it('is drained also after a consumer that failed', async () => {
      const consumer = slowConsumer();
      push(1);
      await world.idle();
      const drained = world.pipe.drained();
      await consumer.finish(new Error('a bug'));
      await drained;
    });
  });
}
