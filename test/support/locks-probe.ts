import { HOST } from './servers/process.ts';
import { redisCommand } from './servers/resp.ts';

/** What tests see of Redis beside the locks: never through the client under test. */

const FENCED_WRITE = `
  local seen = tonumber(redis.call('HGET', KEYS[1], 'fence') or '0')
  if seen > tonumber(ARGV[1]) then return 0 end
  redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'value', ARGV[2])
  return 1`;

/** A resource that refuses who comes with a smaller token than it has seen. */
export async function fencedWrite(port: number, key: string, token: bigint, value: string): Promise<boolean> {
  return (await redisCommand(HOST, port, ['EVAL', FENCED_WRITE, '1', key, String(token), value])) === 1;
}

/** Counts who is in, exclusively (a million each) or together with others (one each): 1 if that is allowed. */
const ENTER = `
  local share, all = tonumber(ARGV[1]), tonumber(redis.call('GET', KEYS[1]) or '0')
  redis.call('SET', KEYS[1], all + share)
  if share == 1 then return all < 1000000 and 1 or 0 end
  return all == 0 and 1 or 0`;

/** Enters a room that should be ours alone (or shared with readers). The way out says whether it was, from end to end. */
export async function exclusiveEntry(port: number, key: string, shared = false): Promise<() => Promise<boolean>> {
  const share = shared ? 1 : 1_000_000;
  const alone = (await redisCommand(HOST, port, ['EVAL', ENTER, '1', key, String(share)])) === 1;
  return async () => {
    const left = (await redisCommand(HOST, port, ['DECRBY', key, String(share)])) as number;
    return alone && (shared ? left < 1_000_000 : left === 0);
  };
}

export async function keysOf(port: number): Promise<string[]> {
  return ((await redisCommand(HOST, port, ['KEYS', '*'])) as string[]).sort();
}

/** What a lock leaves behind when nobody holds or awaits it: nothing but the clock of its prefix. */
export async function leftovers(port: number): Promise<string[]> {
  return (await keysOf(port)).filter((key) => !/^(.*\{\d+\}:clock|alone:.*|resource.*)$/.test(key));
}

/** As `leftovers`, without the ids of requests that were given up with a command under way: these go after two minutes. */
export async function leftoversButGone(port: number): Promise<string[]> {
  return (await leftovers(port)).filter((key) => !key.endsWith('}:gone'));
}

/** Connections that our clients have to it. */
export async function connectionsOf(port: number): Promise<string[]> {
  const list = String(await redisCommand(HOST, port, ['CLIENT', 'LIST']));
  return [...list.matchAll(/ name=(doorbuster-\S+)/g)].map(([, name]) => name!).sort();
}

/** How often a command was called; scripts count as EVALSHA or EVAL, and what they call counts as well. */
export async function callsOf(port: number, command: string): Promise<number> {
  const info = String(await redisCommand(HOST, port, ['INFO', 'commandstats']));
  return Number(new RegExp(`^cmdstat_${command}:calls=(\\d+)`, 'm').exec(info)?.[1] ?? 0);
}

export async function usedMemory(port: number): Promise<number> {
  return Number(/^used_memory:(\d+)/m.exec(String(await redisCommand(HOST, port, ['INFO', 'memory'])))![1]);
}

/** For a proxy: whether this is a call of a script, and, where a word is given, one that mentions it. */
export function asksScript(request: Buffer, word = ''): boolean {
  return /evalsha/i.test(request.toString('latin1')) && request.includes(word);
}
