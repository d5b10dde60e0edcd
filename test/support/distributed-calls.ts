import { type Answer, type CallOptions, type TestServer, token } from './server.ts';

/** Short forms of calls that tests of several processes make often. */

type Server = Pick<TestServer, 'call'>;

export function place(
  server: Server,
  saleId: string,
  buyer: string,
  options: CallOptions & { quantity?: number; item?: string } = {},
): Promise<Answer> {
  const { quantity, item = 'voucher', ...rest } = options;
  const body = { item, ...(quantity !== undefined && { quantity }) };
  return server.call('POST', `/v1/sales/${saleId}/orders`, { buyer, body, ...rest });
}

export function admin(server: Server, method: string, path: string, options: CallOptions = {}): Promise<Answer> {
  return server.call(method, path, { admin: true, ...options });
}

/** The counts of the first item, now. */
// biome-ignore lint/suspicious/noExplicitAny: a test reads whatever came
export async function counts(server: Server, saleId: string): Promise<any> {
  const { status, body } = await server.call('GET', `/v1/sales/${saleId}`);
  if (status !== 200) throw new Error(`no sale: ${status} ${JSON.stringify(body)}`);
  return body.items[0];
}

/** P9, as far as a reader of the API can see it. */
export function isWhole(item: Record<string, number>): boolean {
  return item.free! + item.queued! + item.reserved! + item.sold! + item.blocked! === item.total;
}

export function replayed({ headers }: Answer): boolean {
  return headers.get('idempotent-replayed') === 'true';
}

export function bearer(buyer: string): { authorization: string } {
  return { authorization: `Bearer ${token(buyer)}` };
}

/** One sample of /metrics, without labels or with exactly these; null if there is none. */
export async function metric(server: Server, name: string, labels = ''): Promise<number | null> {
  const { body } = await server.call('GET', '/metrics', { admin: true });
  const line = String(body)
    .split('\n')
    .find((each) => each.startsWith(`${name}${labels} `));
  return line === undefined ? null : Number(line.split(' ').at(-1));
}
