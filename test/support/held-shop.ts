import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { createDoorbuster, type DoorbusterOptions } from '../../src/index.ts';
import type { CaptureResult } from '../../src/payments/port.ts';
import { type BareSocket, bareSocket } from './fault-socket.ts';
import { until } from './fault-wait.ts';
import { ADMIN_KEY, AUTH_SECRET, caller, createSale, temporaryFolder, token } from './server.ts';

export interface Held {
  socket: BareSocket;
  /** Lets the provider answer; resolves to the status, or 0 if the client has left. */
  finish(): Promise<number>;
}

export interface HeldShop {
  url: string;
  call: ReturnType<typeof caller>;
  /** A request that stays in flight until `finish`: a payment with a slow provider. `behind` is pipelined after it. */
  hold(behind?: string): Promise<Held>;
  close(): Promise<void>;
}

/** A shop in this process, mounted in plain node:http: with the bounds of the routes, but not those of `serve`. */
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
    async hold(behind = '') {
      const buyer = `held-${holds++}`;
      const { body } = await call('POST', `/v1/sales/${sale}/orders`, { buyer, body: { item: 'voucher' } });
      const capture = new Promise<() => void>((resolve) => void asked.push(resolve));
      const payment = JSON.stringify({ method: 'held' });
      const socket = await bareSocket(
        url,
        `POST /v1/orders/${body.id}/pay HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${token(buyer)}\r\n` +
          `content-type: application/json\r\ncontent-length: ${payment.length}\r\n\r\n${payment}`,
      );
      const answer = await capture;
      if (behind !== '') socket.socket.write(behind);
      return {
        socket,
        finish: async () => {
          answer();
          await until('the payment is answered', 5_000, () => socket.heard() !== '' || socket.socket.destroyed);
          return Number(socket.heard().slice(9, 12));
        },
      };
    },
    async close() {
      server.close();
      server.closeAllConnections();
      await shop.close();
    },
  };
}
