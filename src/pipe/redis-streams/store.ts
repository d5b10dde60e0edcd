import { messageOf } from '../../base/errors.ts';
import type { KeepAlive } from '../../base/keep-alive.ts';
import type { RedisTarget } from '../../base/redis/address.ts';
import { type ChannelKeys, type ChannelPlaces, Layout } from '../../base/redis/layout.ts';
import { RedisLink } from '../../base/redis/link.ts';
import { scriptsBeside } from '../../base/redis/scripts.ts';
import type { Runtime } from '../../base/runtime.ts';
import { channelWritten, writtenName } from '../../model/channel.ts';
import type { EntryFields } from '../../model/entry.ts';
import type { Channels } from '../channels.ts';

/** The consumer group of the workers; a relay reads in a group of its own. */
const WORKERS = 'ledger';
/** Channels per call of look.lua: some tenths of a millisecond of the server's time. */
const LOOK_AT = 64;
/** Concurrent calls where each channel needs one. */
const AT_ONCE = 64;
const DUE_MAX = 256;
/** Bounds what a stranger who writes into our queues by mistake can store in our Redis. */
const FOREIGN_MAX = 1000;
/** The idle time of a handed-back entry: above everybody's limit. */
const LONG_IDLE_MS = 24 * 3600 * 1000;

const scriptNamed = scriptsBeside(import.meta.url);

export interface StoreOptions<M> {
  readonly channels: Channels<M>;
  readonly redis: RedisTarget;
  readonly prefix: string;
  readonly commandMs: number;
  readonly keepAlive: KeepAlive;
  /** The group and name to read as; unset: as one of the workers. */
  readonly as?: { readonly group: string; readonly consumer: string };
}

export interface StoreEvents {
  wake(channel: string, epoch: number): void;
  interrupted(): void;
}

/** A stream of a channel. */
export interface StreamName {
  readonly channel: string;
  readonly epoch: number;
}

export interface Written {
  readonly id: string;
  readonly fields: EntryFields;
}

/** The work that a channel has. */
export interface Look {
  readonly channel: string;
  readonly letters: number;
  readonly waiting: number;
  readonly due: number;
  readonly streams: readonly { epoch: number; entries: number; messages: number }[];
}

export type Move = { entry: number } & (
  | { to: 'retry'; inMs: number; member: string }
  | { to: 'dead'; letterId: string; letter: string }
);

export interface Marks {
  readonly waiting: number;
  /** How many messages were ever decided, without those that were put aside for another try or became dead letters. */
  readonly decided: number;
  readonly streams: readonly { epoch: number; first: string; last: string }[];
}

/** The pipe's commands to Redis: one method per command or script, without decisions of its own. */
export class StreamStore<M> {
  readonly consumer: string;
  readonly #group: string;
  readonly #link: RedisLink;
  readonly #channels: Channels<M>;
  readonly #places: ChannelPlaces;

  constructor(options: StoreOptions<M>, runtime: Runtime, events: StoreEvents) {
    this.consumer = options.as?.consumer ?? `${process.pid}-${runtime.random.secret(6)}`;
    this.#group = options.as?.group ?? WORKERS;
    this.#channels = options.channels;
    this.#places = options.channels.places(new Layout(options.prefix));
    this.#link = new RedisLink(
      options.redis,
      { commandMs: options.commandMs, broadcast: true },
      runtime,
      options.keepAlive,
      {
        message: (_, message) => {
          const [name, epoch] = message.split(' ') as [string, string?];
          const channel = channelWritten(name);
          if (options.channels.has(channel) && /^\d+$/.test(epoch ?? '')) events.wake(channel, Number(epoch));
        },
        interrupted: () => events.interrupted(),
      },
    );
  }

  #keys(channel: string): ChannelKeys {
    return this.#places.keys(writtenName(channel));
  }

  #stream({ channel, epoch }: StreamName): string {
    return `${this.#places.begin(writtenName(channel))}${epoch}:stream`;
  }

  #run(name: string, keys: readonly string[], args: readonly (string | number)[]): Promise<unknown> {
    return this.#link.script(scriptNamed(name), keys, args);
  }

  listen(): Promise<void> {
    return this.#link.listen(this.#places.wake);
  }

  /** All channels that may have something. */
  async channelNames(): Promise<readonly string[]> {
    const { list } = this.#places;
    if (list === null) return this.#channels.names ?? [];
    return ((await this.#link.call('SMEMBERS', [list])) as string[]).map(channelWritten);
  }

  /** Before the first key of a channel is written; in a cluster the list is in another slot. */
  async #enlist(channel: string): Promise<void> {
    const { list } = this.#places;
    if (list !== null) await this.#link.call('SADD', [list, writtenName(channel)]);
  }

  /** Calls `ask` for every one of `all`, some at a time. */
  async #each<T, R>(all: readonly T[], ask: (one: T) => Promise<R>): Promise<R[]> {
    const replies: R[] = [];
    for (let at = 0; at < all.length; at += AT_ONCE) {
      replies.push(...(await Promise.all(all.slice(at, at + AT_ONCE).map(ask))));
    }
    return replies;
  }

  /** Channels with work. `failure`: why some could not be asked (a node of a cluster is out). */
  async look(names: readonly string[]): Promise<{ looks: Look[]; failure: unknown }> {
    // In a cluster a script reaches the keys of one channel only.
    const size = this.#link.cluster ? 1 : LOOK_AT;
    const groups: string[][] = [];
    for (let at = 0; at < names.length; at += size) groups.push(names.slice(at, at + size));
    let failure: unknown = null;
    const looks = await this.#each(groups, async (group) => {
      const keys: string[] = [];
      const begins: string[] = [];
      for (const channel of group) {
        const { begin, epochs, head, retry, dead } = this.#keys(channel);
        keys.push(epochs, head, retry, dead);
        begins.push(begin);
      }
      try {
        const replies = (await this.#run('look', keys, begins)) as (0 | (number | string)[])[];
        return replies.flatMap((reply, at) => (reply === 0 ? [] : [lookOf(group[at]!, reply)]));
      } catch (error) {
        failure = error;
        return [];
      }
    });
    return { looks: looks.flat(), failure };
  }

  /** Entries that no consumer was given yet. Null: there is no such stream. */
  async read(stream: StreamName, count: number): Promise<Written[] | null> {
    return writtenIn(await this.#read(stream, count, '>'));
  }

  /** Entries that this consumer was given and has not decided, including those in replies that were lost. */
  async readOwn(stream: StreamName, count: number): Promise<Written[] | null> {
    return writtenIn(await this.#read(stream, count, '0'));
  }

  /** The same after a given entry. `gone`: entries that are no longer in the stream. Null: there is no such stream. */
  async readOwnAfter(
    stream: StreamName,
    after: string,
    count: number,
  ): Promise<{ entries: Written[]; gone: string[]; last: string } | null> {
    const raw = await this.#read(stream, count, after);
    if (raw === null) return null;
    const gone = raw.flatMap((entry) => (entry && !entry[1] ? [entry[0]] : []));
    return { entries: writtenIn(raw), gone, last: raw.at(-1)?.[0] ?? after };
  }

  async #read(stream: StreamName, count: number, from: string): Promise<RawEntry[] | null> {
    const key = this.#stream(stream);
    const args = ['GROUP', this.#group, this.consumer, 'COUNT', count, 'STREAMS', key, from];
    for (let tries = 1; ; tries++) {
      try {
        const reply = (await this.#link.call('XREADGROUP', args)) as ReadReply | null;
        return reply === null ? [] : entriesIn(reply);
      } catch (error) {
        if (tries > 1 || !messageOf(error).startsWith('NOGROUP')) throw error;
      }
      const { epochs } = this.#keys(stream.channel);
      if ((await this.#run('group', [key, epochs], [stream.epoch, this.#group])) === 0) return null;
    }
  }

  /** They stay in the stream; this group does not get them again. */
  async acknowledge(stream: StreamName, entryIds: readonly string[]): Promise<void> {
    if (entryIds.length > 0) await this.#link.call('XACK', [this.#stream(stream), this.#group, ...entryIds]);
  }

  /** Entries after one entry (null: from the beginning) and up to another, whichever consumer has them. */
  async between(stream: StreamName, after: string | null, upTo: string, count: number): Promise<Written[]> {
    const args = [this.#stream(stream), after === null ? '-' : `(${after}`, upTo, 'COUNT', count];
    return writtenIn((await this.#link.call('XRANGE', args)) as RawEntry[]);
  }

  /** Claims entries that their owner did not touch for so long. `cursor`: where to go on, null at the end. */
  async claim(
    stream: StreamName,
    idleMs: number,
    count: number,
    cursor: string,
  ): Promise<{ entries: Written[]; cursor: string | null }> {
    try {
      const reply = (await this.#link.call('XAUTOCLAIM', [
        this.#stream(stream),
        this.#group,
        this.consumer,
        idleMs,
        cursor,
        'COUNT',
        count,
      ])) as [string, RawEntry[]];
      return { entries: writtenIn(reply[1]), cursor: reply[0] === '0-0' ? null : reply[0] };
    } catch (error) {
      if (messageOf(error).startsWith('NOGROUP')) return { entries: [], cursor: null };
      throw error;
    }
  }

  /** `messages`: how many the entries contain, including those that are moved. */
  async decide(
    stream: StreamName,
    entryIds: readonly string[],
    messages: number,
    moves: readonly Move[],
  ): Promise<number> {
    const { retry, dead, epochs, decided: counter } = this.#keys(stream.channel);
    const keys = [this.#stream(stream), retry, dead, epochs, counter];
    const decided = Math.max(messages - moves.length, 0);
    const args: (string | number)[] = [this.#group, stream.epoch, entryIds.length, decided, ...entryIds];
    for (const move of moves) {
      if (move.to === 'retry') args.push(move.entry + 1, 'retry', move.inMs, move.member);
      else args.push(move.entry + 1, 'dead', move.letterId, move.letter);
    }
    return (await this.#run('decide', keys, args)) as number;
  }

  /** Touches entries. Resolves with the ids of those that another consumer owns by now. */
  async keep(stream: StreamName, entryIds: readonly string[]): Promise<string[]> {
    return (await this.#run('keep', [this.#stream(stream)], [this.consumer, ...entryIds])) as string[];
  }

  async handBack(stream: StreamName, entryIds: readonly string[]): Promise<void> {
    await this.#run('hand-back', [this.#stream(stream)], [this.consumer, LONG_IDLE_MS, ...entryIds]);
  }

  /** Puts messages that are due back into their streams. Returns the epochs of these streams. */
  async moveDue(channel: string): Promise<number[]> {
    const { begin, retry, epochs } = this.#keys(channel);
    const reply = await this.#run('due', [retry, epochs], [begin, DUE_MAX]);
    return (reply as string[]).map(Number);
  }

  async dropEpoch(stream: StreamName): Promise<boolean> {
    const { epochs, head } = this.#keys(stream.channel);
    return (await this.#run('drop-epoch', [this.#stream(stream), epochs, head], [stream.epoch])) === 1;
  }

  /** Removes consumers that were idle for so long and have nothing pending. */
  async forgetConsumers(stream: StreamName, idleMs: number): Promise<number> {
    return (await this.#run('forget', [this.#stream(stream)], [idleMs, ''])) as number;
  }

  /** Removes our own name, unless something is pending under it. */
  async leave(streams: readonly StreamName[]): Promise<void> {
    // 2^50 ms: no other consumer was idle for that long.
    await this.#each(streams, (stream) => this.#run('forget', [this.#stream(stream)], [2 ** 50, this.consumer]));
  }

  async depth(channel: string): Promise<number> {
    const { begin, epochs, retry } = this.#keys(channel);
    let total = 0;
    let from = ['', ''];
    do {
      const reply = await this.#run('depth', [epochs, retry], [begin, ...from]);
      const [count, ...next] = reply as [number, string, string];
      total += count;
      from = next;
    } while (from[0] !== '');
    return total;
  }

  async marks(channel: string): Promise<Marks> {
    const { begin, epochs, retry, decided: counter } = this.#keys(channel);
    const reply = await this.#run('marks', [epochs, retry, counter], [begin]);
    const [waiting, decided, ...rest] = reply as [number, number, ...string[]];
    const streams: { epoch: number; first: string; last: string }[] = [];
    for (let at = 0; at < rest.length; at += 3) {
      streams.push({ epoch: Number(rest[at]), first: rest[at + 1]!, last: rest[at + 2]! });
    }
    return { waiting, decided, streams };
  }

  /** Ids of dead letters, with the channel of each. */
  async letterIds(): Promise<{ channel: string; letterId: string }[]> {
    const found = await this.#each(await this.channelNames(), async (channel) => {
      const ids = await this.letterIdsIn(channel);
      return ids.map((letterId) => ({ channel, letterId }));
    });
    return found.flat();
  }

  async letterIdsIn(channel: string): Promise<string[]> {
    return (await this.#link.call('HKEYS', [this.#keys(channel).dead])) as string[];
  }

  async letter(channel: string, letterId: string): Promise<string | null> {
    return (await this.#link.call('HGET', [this.#keys(channel).dead, letterId])) as string | null;
  }

  /** The channel of this letter. */
  async channelOfLetter(letterId: string): Promise<string | null> {
    const found = await this.#each(await this.channelNames(), async (channel) => {
      const there = (await this.#link.call('HEXISTS', [this.#keys(channel).dead, letterId])) === 1;
      return there ? channel : null;
    });
    return found.find((channel) => channel !== null) ?? null;
  }

  async retryLetter(channel: string, letterId: string): Promise<boolean> {
    await this.#enlist(channel);
    const { begin, dead, epochs } = this.#keys(channel);
    const args = [begin, letterId, this.#places.wake, writtenName(channel)];
    return (await this.#run('letter-retry', [dead, epochs], args)) === 1;
  }

  async dropLetter(channel: string, letterId: string): Promise<boolean> {
    return (await this.#link.call('HDEL', [this.#keys(channel).dead, letterId])) === 1;
  }

  // Foreign messages: a broker brought them, no relay of ours wrote them, and they belong to no known channel

  /** Returns false if there are too many already. */
  async putForeign(letterId: string, letter: string): Promise<boolean> {
    if ((await this.foreignCount()) >= FOREIGN_MAX && (await this.foreign(letterId)) === null) return false;
    await this.#link.call('HSET', [this.#places.foreign, letterId, letter]);
    return true;
  }

  async foreignCount(): Promise<number> {
    return (await this.#link.call('HLEN', [this.#places.foreign])) as number;
  }

  async foreignIds(): Promise<string[]> {
    return (await this.#link.call('HKEYS', [this.#places.foreign])) as string[];
  }

  async foreign(letterId: string): Promise<string | null> {
    return (await this.#link.call('HGET', [this.#places.foreign, letterId])) as string | null;
  }

  async dropForeign(letterId: string): Promise<boolean> {
    return (await this.#link.call('HDEL', [this.#places.foreign, letterId])) === 1;
  }

  /** Writes a new entry into the stream that it was read from. */
  async write(stream: StreamName, fields: EntryFields): Promise<void> {
    await this.#enlist(stream.channel);
    await this.#link.call('SADD', [this.#keys(stream.channel).epochs, stream.epoch]);
    await this.#link.call('XADD', [this.#stream(stream), '*', ...fields]);
    await this.#link.call('PUBLISH', [this.#places.wake, `${writtenName(stream.channel)} ${stream.epoch}`]);
  }

  close(): void {
    this.#link.close();
  }
}

/** RESP3 returns a map, which ioredis flattens; RESP2 a list of pairs. */
type ReadReply = Stream | [Stream];
type Stream = [key: string, entries: RawEntry[]];

function entriesIn(reply: ReadReply): RawEntry[] {
  return typeof reply[0] === 'string' ? (reply as Stream)[1] : (reply[0] as Stream)[1];
}

/** A deleted entry that was still pending comes without fields, or as nothing at all. */
type RawEntry = [id: string, fields: string[] | null] | null;

function writtenIn(raw: null): null;
function writtenIn(raw: readonly RawEntry[]): Written[];
function writtenIn(raw: readonly RawEntry[] | null): Written[] | null;
function writtenIn(raw: readonly RawEntry[] | null): Written[] | null {
  if (raw === null) return null;
  const entries: Written[] = [];
  for (const entry of raw) if (entry?.[1]) entries.push({ id: entry[0], fields: entry[1] });
  return entries;
}

function lookOf(channel: string, reply: readonly (number | string)[]): Look {
  const [letters, waiting, due, ...rest] = reply.map(Number) as [number, number, number, ...number[]];
  const streams: { epoch: number; entries: number; messages: number }[] = [];
  for (let at = 0; at < rest.length; at += 3) {
    streams.push({ epoch: rest[at]!, entries: rest[at + 1]!, messages: rest[at + 2]! });
  }
  return { channel, letters, waiting, due, streams };
}

/** Estimated from the first entries where a stream is long. */
export function messagesIn({ streams }: Look): number {
  return streams.reduce((sum, { messages }) => sum + messages, 0);
}
