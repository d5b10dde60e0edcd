import { once } from 'node:events';
import { Socket } from 'node:net';
import { Cluster, Redis } from 'ioredis';
import { afterAll, beforeAll, beforeEach, expect, it, vi } from 'vitest';
import { KeepAlive } from '../../src/base/keep-alive.ts';
import { placeOf } from '../../src/base/redis/address.ts';
import { RedisLink } from '../../src/base/redis/link.ts';
import { SentScript } from '../../src/base/redis/sent-script.ts';
import { systemRuntime } from '../../src/base/runtime.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithRedis } from '../support/servers/describe.ts';
import { freePort } from '../support/servers/process.ts';
import { type RedisServer, startRedis } from '../support/servers/redis.ts';

/**
 * What src/base/redis relies on and ioredis does not promise. A test that fails here after an upgrade of ioredis says which
 * file to look at.
 */
afterAll(cleanUpServers);

const streamOf = (client: Redis): unknown => (client as unknown as { stream: unknown }).stream;

describeWithRedis('ioredis inside', () => {
  let redis: RedisServer;
  let client: Redis;

  beforeAll(async () => {
    redis = await startRedis();
  });

  beforeEach(async () => {
    const options = { enableOfflineQueue: false, autoResendUnfulfilledCommands: false, maxRetriesPerRequest: 0 };
    client = new Redis(redis.port, redis.host, options);
    // The stream is there when `connect` is emitted: link.ts unrefs it then, so that it keeps no process alive.
    await once(client, 'connect');
    expect(streamOf(client)).toBeInstanceOf(Socket);
    await once(client, 'ready');
    return () => client.disconnect();
  });

  /** Sends a script as link.ts does; what became of it, and every member of it that ioredis has read. */
  function send(sha: string, after: () => void = () => undefined): Promise<{ end: unknown; read: string[] }> {
    return new Promise((resolve) => {
      const read = new Set<string>();
      const nobody = { answered: () => undefined, failed: () => undefined };
      const finish = (_: SentScript, error: Error | null, reply: unknown): void =>
        // After whatever ioredis does with it in this turn.
        void setImmediate(() => resolve({ end: error?.message ?? reply, read: [...read].sort() }));
      const sent = new SentScript(finish, nobody, { name: 'test', lua: '', sha }, 0, 0, '', 0);
      const watched = new Proxy(sent, {
        get(target, member) {
          read.add(String(member));
          const value: unknown = Reflect.get(target, member, target);
          return typeof value === 'function' ? value.bind(target) : value;
        },
        set(_, member) {
          throw new Error(`ioredis has written ${String(member)}`);
        },
      });
      void client.sendCommand(watched as unknown as Parameters<Redis['sendCommand']>[0]);
      after();
    });
  }

  const load = async (lua: string): Promise<string> => (await client.script('LOAD', lua)) as string;
  const SENDING = ['isTraced', 'name', 'promise', 'setReplyContext', 'toWritable'];

  it('reads only the members that a SentScript has: a reply, an error, a connection that breaks', async () => {
    const answered = await send(await load("return {1, 'two', {'three'}}"));
    expect(answered.end).toEqual([1, 'two', ['three']]);
    expect(answered.read).toEqual([...SENDING, 'resolve'].sort());

    const failed = await send(await load("return redis.error_reply('ERR as it must')"));
    expect(failed.end).toMatch(/^ERR as it must/);
    expect(failed.read).toEqual([...SENDING, 'args', 'reject'].sort());

    const unknown = await send('0'.repeat(40));
    expect(unknown.end).toMatch(/^NOSCRIPT/);

    const broken = await send(await load('return 1'), () => (streamOf(client) as Socket).destroy());
    expect(broken.end).toMatch(/^Reached the max retries per request limit/);
    // `pipelineIndex` is that of a command in a pipeline, and undefined of a SentScript.
    expect(broken.read).toEqual([...SENDING, 'reject', 'pipelineIndex'].sort());
  });

  it('writes commands to `stream`, a socket: link.ts corks it', async () => {
    const sha = await load('return 2');
    const stream = streamOf(client) as Socket;
    expect(stream).toBeInstanceOf(Socket);
    const write = vi.spyOn(stream, 'write');
    await send(sha);
    expect(write).toHaveBeenCalledExactlyOnceWith(`*3\r\n$7\r\nEVALSHA\r\n$40\r\n${sha}\r\n$1\r\n0\r\n`);
    write.mockRestore();
  });

  it('gives the names of a cluster that was given as nodes: address.ts', () => {
    const nodes = [{ host: 'a.test', port: 7001 }, 'redis://user:secret@b.test:7002', 'c.test:7003', 7004];
    const cluster = new Cluster(nodes, { lazyConnect: true });
    expect(placeOf(cluster)).toBe('cluster/a.test:7001,b.test:7002,c.test:7003,127.0.0.1:7004');
    cluster.disconnect();
  });

  it('names the command that was refused, and the error of the last node of a cluster: link.ts', async () => {
    const stranger = new Redis(redis.port, redis.host, { username: 'nobody', password: 'wrong', db: 99 });
    const [error] = (await once(stranger, 'error')) as [{ command: { name: string } }];
    stranger.disconnect();
    expect(error.command.name).toBe('hello');

    const keepAlive = new KeepAlive();
    const ignore = { message: () => undefined, interrupted: () => undefined };
    const url = `redis+cluster://127.0.0.1:${await freePort()}`;
    const link = new RedisLink(url, { commandMs: 300 }, systemRuntime(), keepAlive, ignore);
    await expect(link.call('PING', [])).rejects.toThrow(/Failed to refresh slots cache\. \w+/);
    link.close();
    keepAlive.close();
  });
});
