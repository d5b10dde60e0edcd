import type { OutgoingHttpHeaders } from 'node:http';
import type { FastifyInstance, FastifyPluginOptions, FastifyReply, FastifyRequest, RegisterOptions } from 'fastify';
import { type Answer, Idempotency, type IdempotencyOptions, type Run } from './idempotency.ts';
import type { Locks } from './locks.ts';

export interface FastifyIdempotencyOptions extends IdempotencyOptions<FastifyRequest> {
  locks: Locks;
}

/**
 * Anti-double-submit for the routes of the scope it is registered in, and of those inside it (see idempotency.ts):
 *
 *     await app.register(fastifyIdempotency, { locks, caller: (request) => request.user.id });
 *
 * It acts before the handler, after parsing and validation, and sees the answer in `onSend`, errors included: register it
 * before plugins that change the payload there (compression), so that what is kept is what the handler said. An answer that
 * goes past Fastify (`reply.hijack()`) is not seen: a repeat then gets 409 and is not run.
 */
export async function fastifyIdempotency(app: FastifyInstance, options: FastifyIdempotencyOptions): Promise<void> {
  // Fastify hands a plugin its own options, too (`prefix`, `logLevel`).
  const {
    locks,
    prefix: _prefix,
    logLevel: _logLevel,
    logSerializers: _logSerializers,
    ...rest
  } = options as FastifyIdempotencyOptions & FastifyPluginOptions & RegisterOptions;
  const idempotency = new Idempotency<FastifyRequest>(locks, rest);
  const runs = new WeakMap<FastifyRequest, Run>();

  app.addHook('preHandler', async (request, reply) => {
    const { method, headers, body } = request;
    const leaving = new AbortController();
    const left = (): void => leaving.abort();
    reply.raw.once('close', left);
    const opening = await idempotency.open(
      { request, method, url: request.originalUrl, headers, body },
      leaving.signal,
    );
    reply.raw.off('close', left);
    if (opening.go === 'reply') {
      const { status, headers: kept, body: bytes } = opening.reply;
      reply.code(status).headers(kept);
      // As bytes, which no serialiser touches.
      return bytes.length === 0 ? reply.send() : reply.send(bytes);
    }
    if (opening.go === 'run') {
      const { run } = opening;
      runs.set(request, run);
      reply.raw.once('finish', () => {
        if (runs.delete(request)) void run.end({ status: reply.raw.statusCode, headers: {}, body: null });
      });
    }
    return undefined;
  });

  app.addHook('onSend', async (request, reply, payload: unknown) => {
    const run = runs.get(request);
    if (run && runs.delete(request)) await run.end(answerOf(reply, payload));
    return payload;
  });
}

// Hooks for the scope that registers it, not for one of its own.
Object.assign(fastifyIdempotency, {
  [Symbol.for('skip-override')]: true,
  [Symbol.for('fastify.display-name')]: 'doorbuster-idempotency',
});

function answerOf(reply: FastifyReply, payload: unknown): Answer {
  const body = payload ?? '';
  const seen = typeof body === 'string' || Buffer.isBuffer(body) ? body : null;
  return { status: reply.statusCode, headers: reply.getHeaders() as OutgoingHttpHeaders, body: seen };
}
