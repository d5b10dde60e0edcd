import { type ChildProcess, spawn } from 'node:child_process';
import { ADMIN_KEY, AUTH_SECRET, BIN, run, startServer, type TestServer, track } from './server.ts';

export interface ShopAddresses {
  redisUrl: string;
  databaseUrl: string;
}

export interface TestWorker {
  process: ChildProcess;
  output(): string;
  /** SIGTERM; resolves to the exit code. */
  stop(): Promise<number | null>;
  /** SIGKILL. */
  kill(): Promise<void>;
}

/** A shop of several processes: API servers with no worker of their own, and workers. */
export interface TestShop {
  addresses: ShopAddresses;
  servers: TestServer[];
  workers: TestWorker[];
  startServer(args?: string[]): Promise<TestServer>;
  startWorker(): Promise<TestWorker>;
}

export interface TestShopOptions extends ShopAddresses {
  servers: number;
  workers: number;
  env?: Record<string, string>;
}

function environment({ redisUrl, databaseUrl }: ShopAddresses, env: Record<string, string>): Record<string, string> {
  return { REDIS_URL: redisUrl, DATABASE_URL: databaseUrl, ...env };
}

export async function startShop(options: TestShopOptions): Promise<TestShop> {
  const env = environment(options, options.env ?? {});
  const migrated = await run(['migrate'], { ...env, LOG_LEVEL: 'warn' });
  if (migrated.code !== 0) throw new Error(`migrate ended with ${migrated.code}: ${migrated.stderr}`);
  const shop: TestShop = {
    addresses: options,
    servers: [],
    workers: [],
    async startServer(args = ['--no-worker']) {
      const server = await startServer({ args, env });
      shop.servers.push(server);
      return server;
    },
    async startWorker() {
      const worker = await startWorker(env);
      shop.workers.push(worker);
      return worker;
    },
  };
  await Promise.all([
    ...Array.from({ length: options.servers }, () => shop.startServer()),
    ...Array.from({ length: options.workers }, () => shop.startWorker()),
  ]);
  return shop;
}

export async function startWorker(env: Record<string, string>, bin = BIN): Promise<TestWorker> {
  const child = spawn(process.execPath, [bin, 'worker'], {
    env: {
      ...process.env,
      LOG_LEVEL: 'warn',
      DOORBUSTER_ADMIN_KEY: ADMIN_KEY,
      DOORBUSTER_AUTH_SECRET: AUTH_SECRET,
      ...env,
    },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  track(child);
  let output = '';
  const ended = new Promise<number | null>((resolve) => child.on('close', resolve));
  await new Promise<void>((resolve, reject) => {
    const look = (chunk: Buffer): void => {
      output += chunk;
      // The second is what the version before says (test/support/former.ts).
      if (/doorbuster: (worker started|working)/.test(output)) resolve();
    };
    child.stdout!.on('data', look);
    child.stderr!.on('data', look);
    void ended.then((code) => reject(new Error(`the worker ended with ${code}: ${output}`)));
  });
  return {
    process: child,
    output: () => output,
    stop: () => {
      child.kill('SIGTERM');
      return ended;
    },
    kill: async () => {
      child.kill('SIGKILL');
      await ended;
    },
  };
}
