import { type ChildProcess, spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { createSigner } from 'fast-jwt';
import type { NewItem } from '../../src/model/sale.ts';

export const ROOT = fileURLToPath(new URL('../../', import.meta.url));
export const BIN = join(ROOT, 'bin', 'doorbuster.js');
export const ADMIN_KEY = 'test-admin-key';
export const AUTH_SECRET = 'test-auth-secret-of-at-least-32-bytes';

const sign = createSigner({ key: AUTH_SECRET, algorithm: 'HS256' });

/** A buyer's token. */
export function token(buyer: string): string {
  return sign({ sub: buyer });
}

export interface Answer {
  status: number;
  headers: Headers;
  // biome-ignore lint/suspicious/noExplicitAny: a test reads whatever came
  body: any;
}

export interface CallOptions {
  /** A bearer token or key; `buyer` signs one. */
  bearer?: string;
  buyer?: string;
  admin?: boolean;
  key?: string;
  body?: unknown;
  /** Sent unchanged instead of `body`. */
  raw?: string | Buffer;
  headers?: Record<string, string>;
}

export function caller(url: string): (method: string, path: string, options?: CallOptions) => Promise<Answer> {
  return async (method, path, options = {}) => {
    const bearer =
      options.bearer ?? (options.buyer !== undefined ? token(options.buyer) : options.admin ? ADMIN_KEY : null);
    const payload = options.raw ?? (options.body === undefined ? undefined : JSON.stringify(options.body));
    const response = await fetch(url + path, {
      method,
      headers: {
        ...(bearer !== null && { authorization: `Bearer ${bearer}` }),
        ...(payload !== undefined && { 'content-type': 'application/json' }),
        ...(options.key !== undefined && { 'idempotency-key': options.key }),
        ...options.headers,
      },
      ...(payload !== undefined && { body: payload as string }),
    });
    const text = await response.text();
    const json = (response.headers.get('content-type') ?? '').includes('json');
    return { status: response.status, headers: response.headers, body: json && text !== '' ? JSON.parse(text) : text };
  };
}

export interface TestServer {
  url: string;
  data: string;
  process: ChildProcess;
  call: ReturnType<typeof caller>;
  /** Everything it has printed so far. */
  output(): string;
  /** SIGTERM; resolves to the exit code. */
  stop(): Promise<number | null>;
  /** SIGKILL. */
  kill(): Promise<void>;
}

export interface StartOptions {
  data?: string;
  args?: string[];
  env?: Record<string, string>;
  /** A command to run it under, e.g. ['setpriv', '--reuid=65534', …]. */
  under?: string[];
  /** Another version's command line. */
  bin?: string;
}

const started = new Set<ChildProcess>();
const folders = new Set<string>();

/** Ends processes that a test left running and removes its folders. Call it in afterAll. */
export async function cleanUp(): Promise<void> {
  for (const child of started) child.kill('SIGKILL');
  started.clear();
  for (const folder of folders) rmSync(folder, { recursive: true, force: true });
  folders.clear();
}

/** Registers a process for cleanUp to end. */
export function track(child: ChildProcess): void {
  started.add(child);
}

export function temporaryFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), 'doorbuster-'));
  folders.add(folder);
  return folder;
}

/** Runs the command line in its own process. */
export async function run(
  args: string[],
  env: Record<string, string> = {},
  bin = BIN,
): Promise<{ code: number | null; stdout: string; stderr: string }> {
  const child = spawn(process.execPath, [bin, ...args], {
    env: { ...process.env, ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  started.add(child);
  let stdout = '';
  let stderr = '';
  child.stdout.on('data', (chunk: Buffer) => {
    stdout += chunk;
  });
  child.stderr.on('data', (chunk: Buffer) => {
    stderr += chunk;
  });
  const code = await new Promise<number | null>((resolve) => child.on('close', resolve));
  started.delete(child);
  return { code, stdout, stderr };
}

/** Starts a real server in its own process, on a free port. Resolves when it listens; fails with its output if it ends. */
export async function startServer(options: StartOptions = {}): Promise<TestServer> {
  const data = options.data ?? temporaryFolder();
  const command = [
    ...(options.under ?? []),
    process.execPath,
    options.bin ?? BIN,
    'serve',
    '--port',
    '0',
    '--data',
    data,
    ...(options.args ?? []),
  ];
  const child = spawn(command[0]!, command.slice(1), {
    env: {
      ...process.env,
      LOG_LEVEL: 'warn',
      DOORBUSTER_ADMIN_KEY: ADMIN_KEY,
      DOORBUSTER_AUTH_SECRET: AUTH_SECRET,
      RATE_LIMIT_BUYER: '1000',
      RATE_LIMIT_BUYER_WRITES: '1000',
      RATE_LIMIT_BUYER_READS: '1000',
      // A busy test machine must not look overloaded; tests of overload set their own bound.
      EVENT_LOOP_DELAY_MAX_MS: '60000',
      ...options.env,
    },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  started.add(child);
  let output = '';
  const ended = new Promise<number | null>((resolve) => child.on('close', resolve));
  const url = await new Promise<string>((resolve, reject) => {
    const look = (chunk: Buffer): void => {
      output += chunk;
      const found = /http:\/\/127\.0\.0\.1:\d+/.exec(output);
      if (found) resolve(found[0]);
    };
    child.stdout!.on('data', look);
    child.stderr!.on('data', look);
    void ended.then((code) => reject(new Error(`the server ended with ${code}: ${output}`)));
  });
  return {
    url,
    data,
    process: child,
    call: caller(url),
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

/** What a test relies on; `stock` is that of the only item, unless there are `items`. */
export interface SaleInput {
  stock?: number;
  perBuyer?: number;
  /** Seconds. */
  payWithin?: number;
  opensAt?: string;
  closesAt?: string;
  items?: NewItem[];
}

/** An open sale with one counted item, `voucher`. */
export async function createSale(server: Pick<TestServer, 'call'>, input: SaleInput = {}): Promise<string> {
  const answer = await server.call('POST', '/v1/sales', { admin: true, body: saleBody(input) });
  if (answer.status !== 201) throw new Error(`no sale: ${answer.status} ${JSON.stringify(answer.body)}`);
  return answer.body.id as string;
}

/** The body of `POST /v1/sales`. */
export function saleBody({ stock = 100, ...over }: SaleInput = {}) {
  return {
    name: 'Vouchers',
    opensAt: '2020-01-01T00:00:00.000Z',
    closesAt: '2099-01-01T00:00:00.000Z',
    perBuyer: 1,
    items: [{ code: 'voucher', name: '100 off', price: { amount: 8000, currency: 'CNY' }, stock }],
    ...over,
  };
}

/** All orders of a sale, by the admin's list. */
export async function allOrders(
  server: Pick<TestServer, 'call'>,
  saleId: string,
): Promise<{ id: string; buyer: string; quantity: number; status: string; item: string }[]> {
  const orders = [];
  let cursor: string | null = null;
  do {
    const answer: Answer = await server.call(
      'GET',
      `/v1/orders?saleId=${saleId}&limit=200${cursor ? `&cursor=${cursor}` : ''}`,
      { admin: true },
    );
    if (answer.status !== 200) throw new Error(`no list: ${answer.status}`);
    orders.push(...answer.body.data);
    cursor = answer.body.nextCursor;
  } while (cursor !== null);
  return orders;
}
