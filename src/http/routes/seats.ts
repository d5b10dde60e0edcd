import type { FastifyInstance } from 'fastify';
import * as S from '../../contract/schemas.ts';
import { BlockSeats, type BlockSeatsBody, MoveOrder, type MoveOrderBody, SaleSeats } from '../../contract/seats.ts';
import type { ReseatResult } from '../../orders/life/reseat.ts';
import type { HttpContext } from '../context.ts';
import { Keyed } from '../keyed.ts';
import { HttpProblem } from '../problem.ts';
import { answerChange, publicRead } from '../reply.ts';
import { actorOf } from '../request.ts';
import { NOT_MODIFIED, problems } from '../responses.ts';

interface OfId {
  Params: { id: string };
}

const BODY = ['malformed_json', 'body_too_large', 'unsupported_media_type', 'invalid_request'] as const;
const ADMIN = ['unauthenticated', 'forbidden'] as const;
const KEYED = ['idempotency_key_reused', 'idempotency_in_flight'] as const;
/** A seat's name has up to 136 characters of up to 6 bytes as JSON, and 1 000 of them may be blocked at once. */
const BLOCK_BODY_BYTES_MAX = 1024 * 1024;

/** Numbered seats: what anybody may see, and what an admin may do with them. Orders are placed at routes/orders.ts. */
export function seatRoutes(app: FastifyInstance, context: HttpContext): void {
  const { shop, auth } = context;
  const keyed = new Keyed(context);
  const admin = { 'x-security': [{ admin: [] }], querystring: S.NoQuery, params: S.OfId, headers: S.KeyHeaders };

  app.get<OfId>(
    '/v1/sales/:id/seats',
    {
      schema: {
        tags: ['Sales'],
        summary: 'Get the state of every seat (up to a second old)',
        params: S.OfId,
        querystring: S.NoQuery,
        response: { 200: SaleSeats, 304: NOT_MODIFIED, ...problems('not_found', 'invalid_request') },
      },
    },
    async (request, reply) => {
      const found = await shop.get().publicSeats(request.params.id);
      if (found === null) throw new HttpProblem('not_found', 'there is no such sale');
      return publicRead(request, reply, found);
    },
  );

  const verbs = {
    block: { blocked: true, summary: 'Keep seats back: all or none' },
    unblock: { blocked: false, summary: 'Make blocked seats free again: all or none' },
  };
  for (const [verb, { blocked, summary }] of Object.entries(verbs)) {
    app.post<OfId & { Body: BlockSeatsBody }>(
      `/v1/sales/:id/seats/${verb}`,
      {
        bodyLimit: BLOCK_BODY_BYTES_MAX,
        schema: {
          ...admin,
          tags: ['Sales'],
          summary,
          body: BlockSeats,
          response: {
            200: S.Sale,
            ...problems(...BODY, ...ADMIN, 'not_found', 'seat_taken', 'sale_closed', ...KEYED),
          },
        },
        onRequest: async (request) => void auth.admin(request),
      },
      async (request, reply) => {
        const { id } = request.params;
        const { seats } = request.body;
        const who = auth.asAdmin(request);
        // The ledger stores the key with the change. The same seats in another order are the same call.
        const deed = { operation: `sale.seats.${verb}`, subject: id };
        const call = keyed.callOf(who, request, deed, { seats: seats.toSorted() });
        const caller = { by: actorOf(who, request), keyed: call };
        const change = await keyed.inTurn(call, () => shop.get().setBlocked(id, seats, blocked, caller));
        if (change.outcome === 'seat_taken') {
          throw new HttpProblem('seat_taken', undefined, { seats: change.seats });
        }
        if (change.outcome === 'not_found') throw new HttpProblem('not_found', 'there is no such sale or seat');
        return answerChange(reply, change);
      },
    );
  }

  app.post<OfId & { Body: MoveOrderBody }>(
    '/v1/orders/:id/move',
    {
      schema: {
        ...admin,
        tags: ['Orders'],
        summary: 'Move an order to other seats of its item: all or none',
        body: MoveOrder,
        response: {
          200: S.Order,
          ...problems(
            ...BODY,
            ...ADMIN,
            'not_found',
            'seat_taken',
            'order_not_movable',
            'payment_in_progress',
            ...KEYED,
          ),
        },
      },
      onRequest: async (request) => void auth.admin(request),
    },
    (request, reply) =>
      keyed.run(request, reply, {
        operation: 'order.move',
        subject: request.params.id,
        // Before its key is looked up: not every database can hold any text.
        see: async () => {
          if ((await shop.get().findOrder(request.params.id)) === null) {
            throw new HttpProblem('not_found', 'there is no such order');
          }
          return auth.asAdmin(request);
        },
        act: (who) => shop.get().moveOrder(request.params.id, request.body.seats, actorOf(who, request)),
        answer: answerMoved,
      }),
  );

  async function answerMoved(result: ReseatResult): Promise<{ status: number; body: unknown }> {
    if (result.ok) return { status: 200, body: await shop.get().showOrder(result.order) };
    switch (result.code) {
      case 'not_found':
        throw new HttpProblem('not_found', `there is no such ${result.what}`);
      case 'invalid_request': {
        const { errors } = result;
        throw new HttpProblem('invalid_request', `${errors[0]!.path}: ${errors[0]!.message}`, { errors });
      }
      case 'seat_taken':
        throw new HttpProblem('seat_taken', undefined, {
          seats: result.seats,
          order: await shop.get().showOrder(result.order),
        });
      default: {
        const order = result.order && { order: await shop.get().showOrder(result.order) };
        const again = result.code === 'payment_in_progress' || result.order?.status === 'queued';
        throw new HttpProblem(result.code, undefined, order ?? undefined, again ? { 'retry-after': '1' } : undefined);
      }
    }
  }
}
