import type { FastifyReply } from 'fastify';
import type { SaleChange } from '../ledger/port.ts';
import { HttpProblem, invalid, PROBLEM_TYPE, PROBLEMS, type ProblemCode, plainProblem, problem } from './problem.ts';

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

/** A refusal without members of its own. */
export function refuse(reply: FastifyReply, code: ProblemCode): FastifyReply {
  return reply.code(PROBLEMS[code].status).header('content-type', PROBLEM_TYPE).send(plainProblem(code));
}

/** Answers an administrative change; `replayed` gets the stored answer to the letter. */
export function answerChange(
  reply: FastifyReply,
  change: SaleChange,
  status: number,
  body: () => unknown,
): FastifyReply {
  switch (change.outcome) {
    case 'changed':
      return reply.code(status).send(body());
    case 'replayed':
      return reply
        .code(status)
        .header('idempotent-replayed', 'true')
        .header('content-type', 'application/json; charset=utf-8')
        .send(change.answer);
    case 'invalid_request':
      throw invalid(change.path, change.message);
    default:
      throw new HttpProblem(change.outcome);
  }
}
