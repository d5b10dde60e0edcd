// Wakes its waiters by PUBLISH, so there is no delay to choose; its client is node-redis, which pipelines by itself.
import { type LockAdapter, TTL_MS } from '../../locks/adapter.ts';
import { load } from './packages.ts';

interface Client {
  connect(): Promise<unknown>;
  close(): Promise<void>;
}
interface Module {
  lock(client: Client, name: string, options: { timeout: number }): Promise<() => Promise<void>>;
}

export const adapters: LockAdapter[] = [
  {
    name: 'simple-redis-mutex',
    settings: 'node-redis, as it comes',
    async open(url) {
      const { createClient } = await load<{ createClient(options: { url: string }): Client }>('redis');
      const { lock } = await load<Module>('simple-redis-mutex');
      const client = createClient({ url });
      await client.connect();
      return {
        acquire: (name) => lock(client, name, { timeout: TTL_MS }),
        close: () => client.close(),
      };
    },
  },
];
