import Type from 'typebox';

declare module 'fastify' {
  interface FastifySchema {
    /** Who may call the route; see withSecurity in plugin.ts. */
    'x-security'?: Record<string, string[]>[];
  }
}

import { Id, Order, Time } from '../contract/schemas.ts';
import { PROBLEMS, type ProblemCode } from './problem.ts';

const Problem = Type.Object(
  {
    type: Type.String(),
    title: Type.String(),
    status: Type.Integer(),
    detail: Type.String(),
    code: Type.String(),
    errors: Type.Optional(Type.Array(Type.Object({ path: Type.String(), message: Type.String() }))),
    opensAt: Type.Optional(Time),
    closesAt: Type.Optional(Time),
    order: Type.Optional({ ...Order, description: 'The order in its current state' }),
    orders: Type.Optional(Type.Array(Id, { description: 'Ids of the buyer’s live orders' })),
  },
  { description: 'RFC 9457', additionalProperties: false },
);

export const NOT_MODIFIED = Type.Null({ description: 'Not modified' });

/** The problem responses of a route: one per status, which lists the codes it may carry. */
export function problems(...codes: ProblemCode[]): Record<number, unknown> {
  return described([...codes, 'method_not_allowed', 'rate_limited', 'internal', 'overloaded', 'unavailable']);
}

/** The same for health and metrics, which are never refused under load. */
export function systemProblems(...codes: ProblemCode[]): Record<number, unknown> {
  return described([...codes, 'method_not_allowed', 'internal', 'unavailable']);
}

function described(codes: ProblemCode[]): Record<number, unknown> {
  const byStatus: Record<number, ProblemCode[]> = {};
  for (const code of new Set(codes)) {
    const { status } = PROBLEMS[code];
    byStatus[status] = [...(byStatus[status] ?? []), code];
  }
  return Object.fromEntries(
    Object.entries(byStatus).map(([status, of]) => [
      status,
      {
        description: of.map((code) => `\`${code}\`: ${PROBLEMS[code].title}`).join('; '),
        content: { 'application/problem+json': { schema: problemOf(of) } },
      },
    ]),
  );
}

function problemOf(codes: ProblemCode[]): unknown {
  return { ...Problem, properties: { ...Problem.properties, code: { type: 'string', enum: codes } } };
}
