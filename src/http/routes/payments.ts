import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import Type from 'typebox';
import { providerName } from '../../base/config.ts';
import { RetryableError } from '../../base/errors.ts';
import { readSignature, SIGNATURE_HEADER, SIGNATURE_SECONDS_MAX, signatureFault } from '../../base/signature.ts';
import * as S from '../../contract/schemas.ts';
import { compile, faults } from '../../contract/validate.ts';
import type { OrderRecord } from '../../model/order.ts';
import type { EndResult } from '../../orders/life/cancel.ts';
import type { PayResult } from '../../orders/life/pay.ts';
import type { Order } from '../../views/present.ts';
import { addressOf } from '../address.ts';
import type { Identity } from '../auth.ts';
import { BODY_BYTES_MAX, bodyBytesMax, type HttpContext, type HttpOptions } from '../context.ts';
import { callDigest, Keyed } from '../keyed.ts';
import { HttpProblem, invalid } from '../problem.ts';
import { actorOf } from '../request.ts';
import { problems } from '../responses.ts';

interface OfOrder {
  Params: { id: string };
}

const BODY = ['malformed_json', 'body_too_large', 'unsupported_media_type', 'invalid_request'] as const;
const KEYED = ['idempotency_key_reused', 'idempotency_in_flight'] as const;
/** With refusals that end soon: a payment is under way, or the order is still queued. */
const RETRY_AFTER = { 'retry-after': '1' };

/** Calls that move an order. Every answer is the order as the ledger has it; whoever loses a race gets the state that won. */
export function paymentRoutes(app: FastifyInstance, context: HttpContext): void {
  const { shop, auth, buyerLimits } = context;
  const keyed = new Keyed(context);
  const tags = ['Orders'];
  const params = S.OfId;
  const headers = S.KeyHeaders;
  const owner = { tags, params, headers, querystring: S.NoQuery, 'x-security': [{ buyer: [] }, { admin: [] }] };
  const admin = { ...owner, 'x-security': [{ admin: [] }] };
  const noBody = async (request: FastifyRequest): Promise<void> => {
    if (request.body === undefined) request.body = {};
  };

  app.post<OfOrder & { Body: S.PayOrderBody }>(
    '/v1/orders/:id/pay',
    {
      bodyLimit: bodyBytesMax(S.PayOrder),
      schema: {
        ...owner,
        headers: Type.Object({ ...S.KeyHeader, ...S.BuyerHeader }),
        summary: 'Pay: one capture, however often it is sent',
        body: S.PayOrder,
        response: {
          200: { ...S.Order, description: 'Paid' },
          202: { ...S.PendingOrder, description: 'The provider has not decided yet: follow the order' },
          ...problems(
            'unauthenticated',
            'payment_failed',
            'forbidden',
            'not_found',
            'payment_in_progress',
            'payment_blocked',
            'order_not_payable',
            'amount_mismatch',
            ...KEYED,
            ...BODY,
          ),
        },
      },
      // An admin who pays for a buyer must name the buyer.
      onRequest: async (request) => buyerLimits.take('writes', auth.buyer(request)),
    },
    (request, reply) =>
      keyed.run(request, reply, {
        ...moving(request, 'order.pay'),
        act: ({ who }, _, once) => {
          const { method, token = null } = request.body;
          return shop.get().payOrder(request.params.id, { method, token }, actorOf(who, request), once);
        },
        answer: answerPaid,
        now: async () => {
          const order = await shop.get().showOrder((await visible(request)).order);
          return { status: order.payment?.state === 'pending' ? 202 : 200, body: order };
        },
      }),
  );

  app.post<OfOrder & { Body: S.ConfirmOrderBody }>(
    '/v1/orders/:id/confirm',
    {
      schema: {
        ...admin,
        summary: 'The shop itself took the money',
        body: S.ConfirmOrder,
        response: {
          200: S.Order,
          ...problems(
            'unauthenticated',
            'forbidden',
            'not_found',
            'payment_in_progress',
            'order_not_payable',
            'amount_mismatch',
            ...KEYED,
            ...BODY,
          ),
        },
      },
      onRequest: async (request) => void auth.admin(request),
    },
    (request, reply) =>
      keyed.run(request, reply, {
        ...moving(request, 'order.confirm'),
        act: ({ who }) => {
          const { reference, amount } = request.body;
          return shop.get().confirmOrder(request.params.id, reference, amount, actorOf(who, request));
        },
        answer: answerPaid,
      }),
  );

  app.post<OfOrder>(
    '/v1/orders/:id/cancel',
    {
      bodyLimit: bodyBytesMax(S.Nothing),
      schema: {
        ...owner,
        summary: 'Cancel: the units are free again',
        body: S.Nothing,
        response: {
          200: S.Order,
          ...problems(
            'unauthenticated',
            'not_found',
            'order_not_cancellable',
            'payment_in_progress',
            ...KEYED,
            ...BODY,
          ),
        },
      },
      onRequest: async (request) => buyerLimits.take('writes', auth.anyone(request).buyer),
      preValidation: noBody,
    },
    (request, reply) =>
      keyed.run(request, reply, {
        ...moving(request, 'order.cancel'),
        act: ({ who }) => shop.get().cancelOrder(request.params.id, actorOf(who, request)),
        answer: answerEnded,
      }),
  );

  app.post<OfOrder>(
    '/v1/orders/:id/pay/unblock',
    {
      schema: {
        ...admin,
        summary: 'Lift `payment_blocked` from the order and its buyer',
        body: S.Nothing,
        response: { 200: S.Order, ...problems('unauthenticated', 'forbidden', 'not_found', ...KEYED, ...BODY) },
      },
      onRequest: async (request) => void auth.admin(request),
      preValidation: noBody,
    },
    (request, reply) =>
      keyed.run(request, reply, {
        ...moving(request, 'order.pay.unblock'),
        act: ({ who }) => shop.get().unblockPayments(request.params.id, actorOf(who, request)),
        answer: async (body) => {
          if (body === null) throw new HttpProblem('not_found', 'there is no such order');
          return { status: 200, body };
        },
      }),
  );

  app.post<OfOrder & { Body: S.RefundOrderBody }>(
    '/v1/orders/:id/refund',
    {
      schema: {
        ...admin,
        summary: 'Refund: the money goes back, then the units are free again; of a part of it, the order stays paid',
        body: S.RefundOrder,
        response: {
          200: S.Order,
          ...problems(
            'unauthenticated',
            'forbidden',
            'not_found',
            'order_not_refundable',
            'amount_mismatch',
            ...KEYED,
            ...BODY,
          ),
        },
      },
      onRequest: async (request) => void auth.admin(request),
      preValidation: noBody,
    },
    (request, reply) =>
      keyed.run(request, reply, {
        ...moving(request, 'order.refund'),
        act: ({ who }, call) => {
          // A part that is asked for twice would go back twice: the key goes into the ledger with it.
          const part = { amount: request.body.amount ?? null, madeWith: call && callDigest(call) };
          return shop.get().refundOrder(request.params.id, actorOf(who, request), part);
        },
        answer: answerEnded,
      }),
  );

  void app.register(async (hooks) => webhookRoute(hooks, context));

  /** A call about the order, by somebody who may see it. */
  function moving(request: FastifyRequest<OfOrder>, operation: string) {
    return { operation, subject: request.params.id, see: () => visible(request) };
  }

  /** Somebody else's order is not there: its existence is nobody's business. */
  async function visible(request: FastifyRequest): Promise<{ who: Identity; order: OrderRecord }> {
    const who = auth.anyone(request);
    const { id } = request.params as { id: string };
    const order = await shop.get().findOrder(id);
    const mine = order !== null && (order.buyer === who.buyer || (who.admin !== null && who.buyer === null));
    if (!mine) throw new HttpProblem('not_found', 'there is no such order');
    return { who, order };
  }

  async function answerPaid(result: PayResult): Promise<{ status: number; body: unknown }> {
    if (result.ok) {
      const body = await shop.get().present(result.order, result.attempt);
      if (result.state === 'paid') return { status: 200, body };
      const { redirectUrl } = result;
      return { status: 202, body: { ...body, ...(redirectUrl !== null && { redirectUrl }) } };
    }
    switch (result.code) {
      case 'not_found':
        throw new HttpProblem('not_found', 'there is no such order');
      case 'unknown_method':
        throw invalid('/method', 'is no payment provider of this shop');
      case 'payment_failed':
        throw new HttpProblem('payment_failed', result.reason, await asItIs(result.order));
      case 'payment_in_progress':
        throw new HttpProblem(result.code, result.detail, await asItIs(result.order), RETRY_AFTER);
      default:
        throw new HttpProblem(result.code, undefined, await asItIs(result.order));
    }
  }

  async function answerEnded(result: EndResult): Promise<{ status: number; body: unknown }> {
    if (result.ok) return { status: 200, body: await shop.get().showOrder(result.order) };
    if (result.code === 'not_found') throw new HttpProblem('not_found', 'there is no such order');
    if (result.code === 'idempotency_key_reused') throw new HttpProblem(result.code);
    const again = result.code === 'payment_in_progress' || result.order?.status === 'queued' ? RETRY_AFTER : undefined;
    throw new HttpProblem(result.code, result.detail, await asItIs(result.order), again);
  }

  /** The state that won, with its payment. */
  async function asItIs(order: OrderRecord | null): Promise<{ order: Order } | undefined> {
    return order === null ? undefined : { order: await shop.get().showOrder(order) };
  }
}

/**
 * The signature does not cover the provider's name: a secret is good for every provider that it counts for. So a provider with
 * a secret of its own is believed with that one only, and the shared one is for those that have none.
 */
function secretsOf({ paymentSecrets, providerSecrets }: HttpOptions, provider: string): readonly string[] {
  const name = providerName(provider);
  return Object.hasOwn(providerSecrets, name) ? providerSecrets[name]! : paymentSecrets;
}

function signatureOf(request: FastifyRequest): string | undefined {
  const header = request.headers[SIGNATURE_HEADER];
  return Array.isArray(header) ? header[0] : header;
}

/** What a provider tells. The signature covers the bytes as they came, so they are not parsed before it is checked. */
function webhookRoute(app: FastifyInstance, { shop, options, runtime, overload }: HttpContext): void {
  app.removeAllContentTypeParsers();
  app.addContentTypeParser(
    'application/json',
    { parseAs: 'string', bodyLimit: BODY_BYTES_MAX },
    (request, body, done) => {
      overload.enter(request.raw);
      // Checking the signature costs time: not under overload.
      const reason = overload.reason;
      if (reason === null) done(null, body);
      else done(new RetryableError('overloaded', reason), undefined);
    },
  );

  app.post<{ Params: { provider: string }; Body: string }>(
    '/v1/webhooks/payments/:provider',
    {
      schema: {
        tags: ['Payments'],
        summary: 'News of a payment, signed by its provider; a repeat has no effect',
        params: Type.Object({ provider: Type.String({ maxLength: 32, examples: ['sandbox'] }) }),
        querystring: S.NoQuery,
        headers: Type.Object({
          'doorbuster-signature': Type.String({
            pattern: '^t=[0-9]{1,12}(,v1=[0-9a-f]{64})+$',
            description: `\`t=<unix seconds>,v1=<hex HMAC-SHA256 of "t.body">\`, at most ${SIGNATURE_SECONDS_MAX} s old; any of several \`v1\` may be right`,
          }),
        }),
        body: S.PaymentNews,
        response: {
          200: { ...S.Nothing, description: 'Taken in' },
          ...problems('unauthenticated', 'not_found', ...BODY),
        },
      },
      // The body is text until its signature is checked: it is validated below.
      validatorCompiler: ({ schema, httpPart }) =>
        httpPart === 'querystring' ? compile(schema as object) : () => true,
      // Most forged calls show in the header alone: their bodies are not worth waiting for.
      onRequest: async (request) => {
        const fault = readSignature(signatureOf(request), runtime.clock.now());
        if (typeof fault === 'string') throw new HttpProblem('unauthenticated', fault);
      },
    },
    async (request, reply): Promise<FastifyReply> => {
      const { provider } = request.params;
      const body = request.body ?? '';
      const secrets = secretsOf(options, provider);
      const fault = signatureFault(secrets, body, signatureOf(request), runtime.clock.now());
      if (fault !== null) throw new HttpProblem('unauthenticated', fault);
      // `confirm` is money that the shop took itself: it has no news. After the signature: not everybody may learn the names.
      if (!shop.get().hasProvider(provider))
        throw new HttpProblem('not_found', 'this shop has no such payment provider');
      let news: unknown;
      try {
        news = JSON.parse(body);
      } catch {
        throw new HttpProblem('malformed_json');
      }
      const errors = faults(S.PaymentNews, news);
      if (errors.length > 0) {
        throw new HttpProblem('invalid_request', `${errors[0]?.path}: ${errors[0]?.message}`, { errors });
      }
      if (!(await shop.get().paymentNews({ ...(news as S.PaymentNewsBody), provider }, addressOf(request)))) {
        runtime.log.error({ provider, news }, 'a provider tells of a payment that nobody here has asked for');
      }
      return reply.send({});
    },
  );
}
