/** The catalogue of error codes: stable code, status, title. A test compares docs/reference/errors.md with it. */
export const PROBLEMS = {
  malformed_json: { status: 400, title: 'The body is not valid JSON' },
  unauthenticated: { status: 401, title: 'A valid token or key is required' },
  payment_failed: { status: 402, title: 'The payment was declined; the order can still be paid' },
  forbidden: { status: 403, title: 'This caller may not do that' },
  not_found: { status: 404, title: 'Not found' },
  method_not_allowed: { status: 405, title: 'This path does not support that method' },
  request_timeout: { status: 408, title: 'The request did not arrive in time' },
  version_conflict: { status: 409, title: 'It has changed since that version' },
  insufficient_free: { status: 409, title: 'Fewer units are free than would be removed' },
  sale_has_orders: { status: 409, title: 'The sale has orders, and cannot be deleted' },
  sale_not_open: { status: 409, title: 'The sale has not opened yet' },
  sale_closed: { status: 409, title: 'The sale is closed' },
  sale_paused: { status: 409, title: 'The sale is paused' },
  limit_reached: { status: 409, title: 'The buyer has reached the limit of this sale' },
  seat_taken: { status: 409, title: 'A seat is already taken' },
  sold_out: { status: 409, title: 'Not enough units are free' },
  not_together: { status: 409, title: 'No such run of neighbouring seats is free' },
  payment_in_progress: { status: 409, title: 'A payment for this order is in progress' },
  payment_blocked: { status: 409, title: 'Too many payments were declined' },
  order_not_payable: { status: 409, title: 'The order cannot be paid' },
  amount_mismatch: { status: 409, title: 'The amount is not what the order costs, or more than is left to refund' },
  order_not_cancellable: { status: 409, title: 'The order cannot be cancelled' },
  order_not_refundable: { status: 409, title: 'The order cannot be refunded' },
  order_not_movable: { status: 409, title: 'The order cannot be moved to other seats' },
  webhook_gone: { status: 409, title: 'The endpoint has unsubscribed' },
  username_taken: { status: 409, title: 'An account has this username already' },
  email_taken: { status: 409, title: 'An account has this e-mail address already' },
  idempotency_in_flight: { status: 409, title: 'The first request with this Idempotency-Key is still running' },
  body_too_large: { status: 413, title: 'The body is too large' },
  unsupported_media_type: { status: 415, title: 'The body must be application/json' },
  invalid_request: { status: 422, title: 'The request is not valid' },
  idempotency_key_reused: { status: 422, title: 'The Idempotency-Key belongs to another request' },
  rate_limited: { status: 429, title: 'Too many requests' },
  headers_too_large: { status: 431, title: 'The request headers are too large' },
  internal: { status: 500, title: 'The server failed; its log has the details' },
  overloaded: { status: 503, title: 'The server is overloaded; try again later' },
  unavailable: { status: 503, title: 'The shop is temporarily unavailable; try again later' },
} as const;

export type ProblemCode = keyof typeof PROBLEMS;

export const PROBLEM_TYPE = 'application/problem+json; charset=utf-8';

/** RFC 9457. `more`: extension members of this code, such as `errors`, `orders` or `opensAt`. */
export function problem(code: ProblemCode, detail?: string, more?: Record<string, unknown>): string {
  const { status, title } = PROBLEMS[code];
  return JSON.stringify({
    type: `urn:doorbuster:problem:${code}`,
    title,
    status,
    detail: detail ?? title,
    code,
    ...more,
  });
}

const plain = new Map<ProblemCode, string>();

/** The problem without a detail of its own. Serialised once, because a sold-out sale sends it a million times. */
export function plainProblem(code: ProblemCode): string {
  let text = plain.get(code);
  if (text === undefined) {
    text = problem(code);
    plain.set(code, text);
  }
  return text;
}

/** Thrown by a handler to answer with a problem. */
export class HttpProblem extends Error {
  readonly code: ProblemCode;
  readonly more: Record<string, unknown> | undefined;
  readonly headers: Record<string, string> | undefined;

  constructor(code: ProblemCode, detail?: string, more?: Record<string, unknown>, headers?: Record<string, string>) {
    super(detail ?? PROBLEMS[code].title);
    this.name = 'HttpProblem';
    this.code = code;
    this.more = more;
    this.headers = headers;
  }

  get body(): string {
    return problem(this.code, this.message, this.more);
  }
}

/** A problem that is answered late, to slow down guesses at admin keys. */
export class SlowedProblem extends HttpProblem {
  readonly holdMs: number;
  /** Called when the delay is over. */
  readonly released: () => void;

  constructor(problem: HttpProblem, holdMs: number, released: () => void) {
    super(problem.code, problem.message, problem.more, problem.headers);
    this.holdMs = holdMs;
    this.released = released;
  }
}

export function invalid(path: string, message: string): HttpProblem {
  return new HttpProblem('invalid_request', `${path}: ${message}`, { errors: [{ path, message }] });
}
