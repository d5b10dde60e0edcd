// The floor for the order path: a bare Fastify POST with the same auth, the same body and response schemas and the same
// answer, and nothing behind it: no gate, no ledger, no limits, no metrics. With the argument `turn` it sends its answers
// at the end of each turn of the event loop, as we do. That is a harder floor, because most of the bare route's time goes
// into writes that each wake the client.
import Fastify from 'fastify';
import { systemClock } from '../../src/base/clock.ts';
import { silentLog } from '../../src/base/logger.ts';
import { systemTimers } from '../../src/base/timers.ts';
import { Turn } from '../../src/base/turn.ts';
import { NewOrder, Order } from '../../src/contract/schemas.ts';
import { compile } from '../../src/contract/validate.ts';
import { Auth } from '../../src/http/auth.ts';
import { SignIns } from '../../src/http/sign-ins.ts';

const signIns = new SignIns(systemClock, silentLog());
const auth = new Auth({ authSecrets: [process.env['DOORBUSTER_AUTH_SECRET']!], adminKeys: [] }, signIns);
const app = Fastify({ logger: false });
app.setValidatorCompiler(({ schema }) => compile(schema as object));

const turn = process.argv[2] === 'turn' ? new Turn(systemTimers) : null;
let id = 253585859977150465n;
const now = new Date().toISOString();

app.post<{ Params: { id: string }; Body: { item: string; quantity: number } }>(
  '/v1/sales/:id/orders',
  { schema: { body: NewOrder, response: { 201: Order } } },
  async (request, reply) => {
    const buyer = auth.buyer(request);
    if (turn !== null) await turn.end();
    const orderId = (id++).toString();
    return reply
      .code(201)
      .header('location', `/v1/orders/${orderId}`)
      .send({
        id: orderId,
        saleId: request.params.id,
        buyer,
        item: request.body.item,
        quantity: request.body.quantity,
        seats: [],
        amount: { amount: 8000, currency: 'CNY' },
        status: 'reserved',
        reason: null,
        payment: null,
        expiresAt: now,
        createdAt: now,
        updatedAt: now,
        version: 1,
      });
  },
);

process.on('SIGINT', () => process.exit(0));
await app.listen({ port: 0, host: '127.0.0.1' });
console.log(`listening on http://127.0.0.1:${(app.server.address() as { port: number }).port}`);
