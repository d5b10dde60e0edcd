import { Readable } from 'node:stream';
import type { FastifyReply, FastifyRequest } from 'fastify';
import type { SaleChange } from '../ledger/port.ts';
import type { PublicAnswer } from '../views/public-answer.ts';
import { HttpProblem, invalid, PROBLEM_TYPE, PROBLEMS, type ProblemCode, plainProblem, problem } from './problem.ts';

/** The API answers JSON: a browser must never run, frame or sniff it. */
export const SECURE_HEADERS = {
  'x-content-type-options': 'nosniff',
  'content-security-policy': "default-src 'none'; frame-ancestors 'none'",
  'referrer-policy': 'no-referrer',
  'cross-origin-resource-policy': 'same-origin',
};

export function sendProblem(
  reply: FastifyReply,
  code: ProblemCode,
  detail?: string,
  more?: Record<string, unknown>,
): FastifyReply {
  return reply
    .code(PROBLEMS[code].status)
    .header('content-type', PROBLEM_TYPE)
    .send(problem(code, detail, more));
}

/** Answers with a problem that has no detail or members of its own. */
export function refuse(reply: FastifyReply, code: ProblemCode): FastifyReply {
  return reply.code(PROBLEMS[code].status).header('content-type', PROBLEM_TYPE).send(plainProblem(code));
}

/** With an ETag and a second of caching, so that a cache in front of us serves a crowd that reloads. */
export function publicRead(request: FastifyRequest, reply: FastifyReply, answer: PublicAnswer): FastifyReply {
  const { tag, bytes } = answer;
  reply.header('etag', tag).header('cache-control', 'public, max-age=1');
  if (isKnown(request, tag)) return reply.code(304).send();
  reply.header('content-type', 'application/json; charset=utf-8');
  // Without the body, which need not be made for its length. Fastify would overwrite the length if there were no payload.
  if (request.method === 'HEAD') return reply.header('content-length', String(bytes)).send(Readable.from([]));
  return reply.send(answer.body);
}

/** True if the client already has the version with this ETag. */
export function isKnown(request: FastifyRequest, tag: string): boolean {
  const known = request.headers['if-none-match'];
  if (known === undefined) return false;
  return known === '*' || known.split(',').some((given) => given.trim().replace(/^W\//, '') === tag);
}

/** Answers an administrative change. A repeat with the same key gets the first answer, byte for byte. */
export function answerChange(reply: FastifyReply, change: SaleChange, status = 200): FastifyReply {
  switch (change.outcome) {
    case 'changed':
    case 'replayed':
      if (change.outcome === 'replayed') reply.header('idempotent-replayed', 'true');
      return reply.code(status).header('content-type', 'application/json; charset=utf-8').send(change.answer);
    case 'invalid_request':
      throw invalid(change.path, change.message);
    default:
      throw new HttpProblem(change.outcome);
  }
}
