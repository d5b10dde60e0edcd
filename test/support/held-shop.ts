import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { createDoorbuster, type DoorbusterOptions } from '../../src/index.ts';
import type { CaptureResult } from '../../src/payments/port.ts';
import { ADMIN_KEY, AUTH_SECRET, caller, createSale, temporaryFolder, token } from './server.ts';

export interface Held {
  /** The provider answers; resolves to the status. */
  finish(): Promise<number>;
  /** The client goes away; the provider goes on. */
  leave(): void;
}

export interface HeldShop {
  url: string;
  call: ReturnType<typeof caller>;
  /** A request that is in flight until it is told to finish: a payment whose provider takes its time. */
  hold(): Promise<Held>;
  close(): Promise<void>;
}

/** A shop in this process, mounted in plain node:http. Its bounds are those of the routes, not of `serve`. */
export async function startHeldShop(http: NonNullable<DoorbusterOptions['http']>): Promise<HeldShop> {
  const asked: ((answer: () => void) => void)[] = [];
  const shop = await createDoorbuster({
    data: temporaryFolder(),
    adminKey: ADMIN_KEY,
    authSecret: AUTH_SECRET,
    http: { eventLoopDelayMsMax: 60_000, ...http },
    providers: [
      {
        name: 'held',
        capture: ({ attemptId, amount }) =>
          new Promise<CaptureResult>((resolve) => {
            asked.shift()!(() => resolve({ state: 'captured', reference: attemptId, amount }));
          }),
        query: async () => ({ state: 'unknown' }),
        void: async () => ({ state: 'voided' }),
        refund: async () => ({ reference: null }),
      },
    ],
  });
  const server = createServer(shop.handler());
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const call = caller(url);
  const sale = await createSale({ call });
  let holds = 0;
  return {
    url,
    call,
    async hold() {
      const buyer = `held-${holds++}`;
      const { body } = await call('POST', `/v1/sales/${sale}/orders`, { buyer, body: { item: 'voucher' } });
      const capture = new Promise<() => void>((resolve) => void asked.push(resolve));
      const gone = new AbortController();
      const paid = fetch(`${url}/v1/orders/${body.id}/pay`, {
        method: 'POST',
        headers: { authorization: `Bearer ${token(buyer)}`, 'content-type': 'application/json' },
        body: JSON.stringify({ method: 'held' }),
        signal: gone.signal,
      }).then(
        ({ status }) => status,
        () => 0,
      );
      const answer = await Promise.race([
        capture,
        paid.then((status) => {
          throw new Error(`the payment was not held: ${status}`);
        }),
      ]);
      return {
        finish: () => {
          answer();
          return paid;
        },
        leave: () => gone.abort(),
      };
    },
    async close() {
      server.close();
      server.closeAllConnections();
      await shop.close();
    },
  };
}
