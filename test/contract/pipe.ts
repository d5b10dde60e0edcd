import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { DeadLetters, Pipe, Undeliverable } from '../../src/pipe/port.ts';
import { sleep, until } from '../support/fault-wait.ts';
import { TEST_LIKES, TEST_ORDERS, type TestKind } from '../support/streams.ts';
import { countTests } from './count.ts';

export interface PipeUnderTest<M> {
  pipe: Pipe<M>;
  /** A message is delivered three times, the second time after RETRY_MS, before it becomes a dead letter. Null: there are none. */
  letters: DeadLetters<M> | null;
  /** As the gate does when it admits several orders of one sale in one step. */
  push(messages: M[]): Promise<void>;
  /** … of several steps, one after the other. */
  pushEach(messages: M[]): Promise<void>;
  /** The largest batch. */
  batchMax: number;
  /** True if messages that wait when the consumer starts fill whole batches; a broker delivers them bit by bit. */
  fillsBatches?: boolean;
  end(): Promise<void>;
}

export const RETRY_MS = 60;
export const TRIES_MAX = 3;
/** Long enough to notice something that must not happen. */
const A_WHILE_MS = 120;

export interface PipeContractOptions {
  readonly keepsLetters?: boolean;
  /** Of the likes only what depends on the kind of message, where a test takes long: the rest is the same code. */
  readonly fewOfLikes?: boolean;
}

/** The contract of src/pipe/port.ts, for both kinds of messages. */
export function pipeContract(
  name: string,
  make: <M>(kind: TestKind<M>) => Promise<PipeUnderTest<M>>,
  { keepsLetters = true, fewOfLikes = false }: PipeContractOptions = {},
): void {
  contractOf(name, TEST_ORDERS, make, keepsLetters, false);
  contractOf(`${name}, likes`, TEST_LIKES, make, keepsLetters, fewOfLikes);
}

function contractOf<M>(
  name: string,
  kind: TestKind<M>,
  make: (kind: TestKind<M>) => Promise<PipeUnderTest<M>>,
  keepsLetters: boolean,
  few: boolean,
): void {
  const { codec } = kind.channels;
  const idIn = kind.idIn;
  const ONE = kind.channel(1);
  const TWO = kind.channel(2);
  const SIX = kind.channel(6);
  const SEVEN = kind.channel(7);
  type Declare = (title: string, test: () => Promise<void>) => void;
  const not: Declare = () => undefined;

  describe(`pipe contract: ${name}`, () => {
    countTests('pipe', name);
    let world: PipeUnderTest<M>;
    let letters: DeadLetters<M>;
    /** A test whose outcome does not depend on the kind of message. */
    const itOnce: Declare = few ? not : it;
    /** A test of messages that are undeliverable: only pipes with dead letters take them back. */
    const itKeepsLetters: Declare = keepsLetters ? it : not;
    const itKeepsLettersOnce: Declare = keepsLetters ? itOnce : not;
    let lastId: number;
    let pushed: Map<string, M>;

    beforeEach(async () => {
      world = await make(kind);
      expect(world.letters !== null).toBe(keepsLetters);
      letters = world.letters!;
      lastId = 0;
      pushed = new Map();
    });

    afterEach(() => world.end());

    function messages(count: number, channel = 1): M[] {
      return Array.from({ length: count }, () => {
        const message = kind.message(++lastId, channel);
        pushed.set(String(lastId), message);
        return message;
      });
    }

    /** One step that decides `count` messages. */
    async function push(count = 1, channel = 1): Promise<string[]> {
      const sent = messages(count, channel);
      await world.push(sent);
      return idsOf(sent);
    }

    const idsOf = (batch: readonly M[]): string[] => batch.map(idIn);
    const poison = (batch: readonly M[], ...ids: string[]): Undeliverable<M>[] =>
      batch
        .filter((message) => ids.includes(idIn(message)))
        .map((message) => ({ message, error: new Error('poison') }));
    /** The id of the letter of the message with this id. */
    const letterId = (id: string): string => codec.idOf(pushed.get(id)!);

    function collect(): string[] {
      const seen: string[] = [];
      world.pipe.consume(async (batch) => void seen.push(...idsOf(batch)));
      return seen;
    }

    /** A consumer that finishes a batch only when told to. */
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
        async has(count: number) {
          await until(`batch ${count} is handed over`, 5000, () => batches.length >= count);
          expect(batches.length).toBe(count);
        },
        finish(error?: Error) {
          const handling = open.shift()!;
          if (error) handling.reject(error);
          else handling.resolve();
        },
      };
    }

    it('P3: hands over every message once, in order within a channel', async () => {
      const batches: M[][] = [];
      world.pipe.consume(async (batch) => void batches.push(batch));
      const one = [...(await push(3)), ...(await push(2))];
      const six = await push(2, 6);
      await sleep(20);
      one.push(...(await push(1)));
      expect(await world.pipe.caughtUp(ONE, 5000)).toBe(true);
      expect(await world.pipe.caughtUp(SIX, 5000)).toBe(true);
      await sleep(A_WHILE_MS);
      const all = batches.flat();
      const of = (channel: string): M[] => all.filter((message) => kind.channels.channelOf(message) === channel);
      expect(idsOf(of(ONE))).toEqual(one);
      expect(idsOf(of(SIX))).toEqual(six);
      expect(all.length).toBe(8);
      expect(await world.pipe.depthOf(ONE)).toBe(0);
    });

    it('hands a message over as it was pushed', async () => {
      const seen: M[] = [];
      world.pipe.consume(async (batch) => void seen.push(...batch));
      await world.push([kind.odd]);
      if (kind.newer.length > 0) await world.push([...kind.newer]);
      expect(await world.pipe.caughtUp(ONE, 5000)).toBe(true);
      expect(seen).toEqual([kind.odd, ...kind.newer]);
    });

    itOnce('P3: keeps what arrives before there is a consumer', async () => {
      const sent = await push(3);
      expect(await world.pipe.depthOf(ONE)).toBe(3);
      expect(await world.pipe.depthOf(TWO)).toBe(0);
      expect(await world.pipe.caughtUp(ONE, 20)).toBe(false);
      const seen = collect();
      expect(await world.pipe.caughtUp(ONE, 5000)).toBe(true);
      expect(seen).toEqual(sent);
    });

    itOnce('what arrives together goes together', async () => {
      const consumer = slowConsumer();
      const sent = await push(5);
      await consumer.has(1);
      expect(consumer.batches).toEqual([sent]);
      consumer.finish();
    });

    itOnce('hands over one batch of a channel at a time; what arrives meanwhile is the next one', async () => {
      const consumer = slowConsumer();
      const first = await push(2);
      await consumer.has(1);
      const second = [...(await push(1)), ...(await push(2))];
      await sleep(A_WHILE_MS);
      expect(consumer.batches).toEqual([first]);
      expect(await world.pipe.depthOf(ONE), 'a message is in the pipe until it is decided').toBe(5);
      consumer.finish();
      await consumer.has(2);
      expect(consumer.batches).toEqual([first, second]);
      expect(await world.pipe.depthOf(ONE)).toBe(3);
      consumer.finish();
      expect(await world.pipe.caughtUp(ONE, 5000)).toBe(true);
      expect(await world.pipe.depthOf(ONE)).toBe(0);
    });

    itOnce('a batch is bounded, and the rest follows in order', async () => {
      const sent = messages(world.batchMax * 2 + 1);
      await world.pushEach(sent);
      const batches: string[][] = [];
      world.pipe.consume(async (batch) => void batches.push(idsOf(batch)));
      expect(await world.pipe.caughtUp(ONE, 5000)).toBe(true);
      if (world.fillsBatches ?? true) {
        expect(batches.map((batch) => batch.length)).toEqual([world.batchMax, world.batchMax, 1]);
      }
      expect(Math.max(...batches.map((batch) => batch.length))).toBeLessThanOrEqual(world.batchMax);
      expect(batches.flat()).toEqual(idsOf(sent));
    });

    itOnce(
      'P3: a batch that was rejected is handed over again, whole and before what came since, and no try is counted',
      async () => {
        const batches: string[][] = [];
        let outages = TRIES_MAX + 2;
        world.pipe.consume(async (batch) => {
          batches.push(idsOf(batch));
          if (outages-- > 0) throw new Error('the ledger is out');
        });
        const first = await push(3);
        await until('it was rejected', 5000, () => batches.length > 1);
        const next = await push(2);
        expect(await world.pipe.caughtUp(ONE, 10_000)).toBe(true);
        expect(batches.slice(0, TRIES_MAX + 3)).toEqual(Array(TRIES_MAX + 3).fill(first));
        expect(batches.slice(TRIES_MAX + 3)).toEqual([next]);
        expect((await world.letters?.list(10, null)) ?? []).toEqual([]);
      },
    );

    itOnce('P3: a consumer that throws at once has rejected, too', async () => {
      const seen: string[] = [];
      world.pipe.consume((batch) => {
        seen.push(...idsOf(batch));
        if (seen.length === 1) throw new Error('a bug');
        return Promise.resolve();
      });
      await push(1);
      expect(await world.pipe.caughtUp(ONE, 5000)).toBe(true);
      expect(seen).toEqual(['1', '1']);
    });

    itKeepsLettersOnce('a message that is undeliverable is tried again later, apart from the others', async () => {
      const batches: string[][] = [];
      let bad = 2;
      world.pipe.consume(async (batch) => {
        batches.push(idsOf(batch));
        const found = bad > 0 ? poison(batch, '2') : [];
        bad -= found.length;
        return found;
      });
      await push(3);
      await until('the first batch is decided', 5000, async () => (await world.pipe.depthOf(ONE)) === 1);
      await push(1);
      await until('the next goes ahead of it', 5000, () => batches.flat().includes('4'));
      expect(await world.pipe.caughtUp(ONE, 5000)).toBe(true);
      const seen = batches.flat();
      expect(batches[0]).toEqual(['1', '2', '3']);
      expect(seen.filter((id) => id === '2').length).toBe(3);
      expect(seen.filter((id) => id !== '2')).toEqual(['1', '3', '4']);
      expect(await letters.list(10, null)).toEqual([]);
    });

    itKeepsLetters('a message that stays undeliverable becomes a dead letter, after growing delays', async () => {
      const triedAtMs: number[] = [];
      world.pipe.consume(async (batch) => {
        if (batch.some((message) => idIn(message) === '2')) triedAtMs.push(performance.now());
        return poison(batch, '2');
      });
      await push(3);
      expect(await world.pipe.caughtUp(ONE, 5000), 'a dead letter is out of the pipe').toBe(true);
      expect(triedAtMs.length).toBe(TRIES_MAX);
      expect(triedAtMs[1]! - triedAtMs[0]!).toBeGreaterThanOrEqual(RETRY_MS - 2);
      expect(triedAtMs[2]! - triedAtMs[1]!).toBeGreaterThanOrEqual(2 * RETRY_MS - 2);
      expect(await world.pipe.depthOf(ONE)).toBe(0);
      const letter = await letters.get(letterId('2'));
      expect(letter).toEqual({
        id: letterId('2'),
        channel: ONE,
        message: pushed.get('2'),
        error: 'poison',
        attempts: TRIES_MAX,
        diedAtMs: expect.closeTo(Date.now(), -4),
      });
      expect(await letters.list(10, null)).toEqual([letter]);
      expect(await letters.get(letterId('1'))).toBeNull();
      expect(await letters.idsIn(ONE)).toEqual([letterId('2')]);
      expect(await letters.idsIn(kind.channel(2))).toEqual([]);
    });

    itKeepsLettersOnce('dead letters are listed newest first, of all channels, in pages', async () => {
      world.pipe.consume(async (batch) => batch.map((message) => ({ message, error: new Error('no') })));
      // Numbers, not text: 10 is newer than 9.
      for (let channel = 1; channel <= 4; channel++) await push(3, channel);
      for (let channel = 1; channel <= 4; channel++) {
        expect(await world.pipe.caughtUp(kind.channel(channel), 5000)).toBe(true);
      }
      const ids = async (limit: number, before: string | null): Promise<string[]> =>
        idsOf((await letters.list(limit, before === null ? null : letterId(before))).map(({ message }) => message));
      expect(await ids(5, null)).toEqual(['12', '11', '10', '9', '8']);
      expect(await ids(5, '8')).toEqual(['7', '6', '5', '4', '3']);
      expect(await ids(5, '3')).toEqual(['2', '1']);
      expect(await ids(5, '1')).toEqual([]);
    });

    itKeepsLetters('a dead letter can be tried again, with no tries counted, or dropped', async () => {
      let bad = true;
      const seen: string[] = [];
      world.pipe.consume(async (batch) => {
        seen.push(...idsOf(batch));
        return bad ? poison(batch, '1', '2') : [];
      });
      await push(2);
      expect(await world.pipe.caughtUp(ONE, 5000)).toBe(true);
      expect(seen.length).toBe(2 * TRIES_MAX);

      expect(await letters.retry(letterId('1'))).toBe(true);
      expect(await letters.get(letterId('1'))).toBeNull();
      expect(await world.pipe.caughtUp(ONE, 5000)).toBe(true);
      expect(seen.filter((id) => id === '1').length).toBe(2 * TRIES_MAX);
      expect(await letters.get(letterId('1'))).toMatchObject({ attempts: TRIES_MAX });

      bad = false;
      expect(await letters.retry(letterId('1'))).toBe(true);
      expect(await letters.retry(letterId('1'))).toBe(false);
      expect(await world.pipe.caughtUp(ONE, 5000)).toBe(true);
      expect(seen.filter((id) => id === '1').length).toBe(2 * TRIES_MAX + 1);

      expect(await letters.drop(letterId('2'))).toBe(true);
      expect(await letters.drop(letterId('2'))).toBe(false);
      expect(await letters.retry(letterId('2'))).toBe(false);
      expect(await letters.list(10, null)).toEqual([]);
      expect(await world.pipe.depthOf(ONE)).toBe(0);
    });

    itOnce('counts the messages of each channel', async () => {
      await push(3);
      await push(1);
      await push(2, 7);
      expect(await world.pipe.depthOf(ONE)).toBe(4);
      expect(await world.pipe.depthOf(SEVEN)).toBe(2);
      collect();
      expect(await world.pipe.caughtUp(ONE, 5000)).toBe(true);
      expect(await world.pipe.caughtUp(SEVEN, 5000)).toBe(true);
      expect(await world.pipe.depthOf(ONE)).toBe(0);
      expect(await world.pipe.depthOf(SEVEN)).toBe(0);
    });

    itKeepsLetters('counts the messages of each channel, those to be tried again too', async () => {
      await push(3);
      await push(1);
      await push(2, 7);
      expect(await world.pipe.depthOf(ONE)).toBe(4);
      expect(await world.pipe.depthOf(SEVEN)).toBe(2);
      const held = Promise.withResolvers<void>();
      let tries = 0;
      world.pipe.consume(async (batch) => {
        if (kind.channels.channelOf(batch[0]!) === SEVEN) return [];
        if (tries++ > 0) await held.promise;
        return tries === 1 ? poison(batch, '2', '3') : [];
      });
      await until('two of four are left', 5000, async () => (await world.pipe.depthOf(ONE)) === 2);
      expect(await world.pipe.caughtUp(ONE, 2 * RETRY_MS), 'they have not left').toBe(false);
      held.resolve();
      expect(await world.pipe.caughtUp(ONE, 5000)).toBe(true);
      expect(await world.pipe.depthOf(ONE)).toBe(0);
      expect(await world.pipe.depthOf(SEVEN)).toBe(0);
    });

    itOnce('has caught up when all that was in it has left, whatever has come since', async () => {
      expect(await world.pipe.caughtUp(ONE)).toBe(true);
      expect(await world.pipe.caughtUp(ONE, 0)).toBe(true);
      const consumer = slowConsumer();
      await push(2);
      await consumer.has(1);
      await push(1);
      let heard = false;
      void world.pipe.caughtUp(ONE, 10_000).then((caughtUp) => (heard = caughtUp));
      await sleep(A_WHILE_MS);
      consumer.finish();
      await consumer.has(2);
      await sleep(A_WHILE_MS);
      expect(heard, 'its last message is being handled').toBe(false);
      await push(1);
      consumer.finish();
      await until('it has caught up', 5000, () => heard);
      await consumer.has(3);
      consumer.finish();
    });

    itOnce('has not caught up after the time it was given', async () => {
      const consumer = slowConsumer();
      await push(1);
      const startedMs = performance.now();
      expect(await world.pipe.caughtUp(ONE, 150)).toBe(false);
      expect(performance.now() - startedMs).toBeGreaterThan(145);
      expect(performance.now() - startedMs).toBeLessThan(1500);
      await consumer.has(1);
      consumer.finish();
      expect(await world.pipe.caughtUp(ONE)).toBe(true);
    });

    itOnce('P3: is waited for while its messages are being decided, and not when none was for a while', async () => {
      const idleMs = 500;
      const consumer = slowConsumer();
      let taken = 0;
      for (;;) {
        for (let batch = 0; batch < 3; batch++) await push(world.batchMax);
        await consumer.has(++taken);
        let [over, movedMs, longestMs] = [false, performance.now(), 0];
        const startedMs = movedMs;
        const waited = world.pipe.caughtUp(ONE, 20_000, idleMs);
        void waited.then(() => (over = true));
        for (let batch = 0; batch < 2; batch++) {
          await sleep(0.55 * idleMs);
          consumer.finish();
          await consumer.has(++taken);
          longestMs = Math.max(longestMs, performance.now() - movedMs);
          movedMs = performance.now();
        }
        // If the machine stalled for that long, the result means nothing.
        if (longestMs < 0.8 * idleMs) {
          expect(movedMs - startedMs).toBeGreaterThan(idleMs);
          expect(over, 'one was decided after the other').toBe(false);
          expect(await waited, 'the last one stands still').toBe(false);
          // The wait ends, however quickly they are decided.
          expect(await world.pipe.caughtUp(ONE, 20, idleMs)).toBe(false);
        }
        consumer.finish();
        expect(await world.pipe.caughtUp(ONE, 10_000, 10_000)).toBe(true);
        if (longestMs < 0.8 * idleMs) return;
      }
    });

    itKeepsLettersOnce('P10: a message that is tried again and again is not one that is decided', async () => {
      world.pipe.consume(async (batch) => poison(batch, ...idsOf(batch)));
      await push(1);
      // It is retried all the time, and becomes a dead letter in the end, which is out of the pipe.
      expect(await world.pipe.caughtUp(ONE, 20_000, 2 * RETRY_MS)).toBe(false);
    });

    itOnce('catches up also if more is always there', async () => {
      let more = true;
      world.pipe.consume(async () => {
        // A crowd: another batch waits for every one that is handled.
        if (more) await push(world.batchMax);
      });
      await push(1);
      expect(await world.pipe.caughtUp(ONE, 10_000)).toBe(true);
      expect(await world.pipe.depthOf(ONE)).toBeGreaterThan(0);
      more = false;
      await until('it is empty', 10_000, async () => (await world.pipe.depthOf(ONE)) === 0);
    });

    itOnce('stops: what was handed over is decided, and the rest stays', async () => {
      const consumer = slowConsumer();
      await push(2);
      await consumer.has(1);
      await push(3);
      let stopped = false;
      const stopping = world.pipe.stop().then(() => (stopped = true));
      await sleep(A_WHILE_MS);
      expect(stopped, 'a batch is being handled').toBe(false);
      consumer.finish();
      await stopping;
      await push(1);
      await sleep(A_WHILE_MS);
      expect(consumer.batches).toEqual([['1', '2']]);
      expect(await world.pipe.depthOf(ONE)).toBe(4);
      await world.pipe.stop();
    });

    itOnce('stops also while a batch is rejected again and again: it stays', async () => {
      let tries = 0;
      world.pipe.consume(async () => {
        tries++;
        throw new Error('the ledger is out');
      });
      await push(2);
      await until('it was rejected', 5000, () => tries > 1);
      await world.pipe.stop();
      const triesThen = tries;
      await sleep(A_WHILE_MS);
      expect(tries).toBe(triesThen);
      expect(await world.pipe.depthOf(ONE)).toBe(2);
    });
  });
}
