import { messageOf, TerminalError } from '../../base/errors.ts';

/** The broker is silent, or the quorum queue has no leader and does not answer until it has one. */
export class NoAnswerError extends Error {
  constructor(afterMs: number) {
    super(`no answer within ${afterMs} ms`);
  }
}

/** The error code of RabbitMQ (`ACCESS_REFUSED`) or of the system (`ECONNREFUSED`). */
export function codeOf(error: unknown): string | null {
  const code = (error as { code?: unknown } | null)?.code;
  return typeof code === 'string' ? code : null;
}

/** The message of the server or the system, in one line. */
export function wordsOf(error: unknown): string {
  // A name with several addresses, none of which answers, gives an error without a message.
  const text = messageOf(error) || codeOf(error) || 'no connection';
  // The client adds the method, before (`QueueDeclare: PRECONDITION_FAILED - inequivalent …`) or after the message.
  return text
    .replace(/^(?:\w+: )?[A-Z_]+ - /, '')
    .replace(/(?:; Basic\w+)+$/, '')
    .replace(/\s+/g, ' ')
    .trim();
}

const CERTIFICATE =
  /^(ERR_TLS_CERT_ALTNAME_INVALID|CERT_\w+|SELF_SIGNED_CERT_IN_CHAIN|DEPTH_ZERO_SELF_SIGNED_CERT|UNABLE_TO_\w+)$/;

/** Why no connection is possible with these settings. Null: a later try may succeed. */
export function refusalOf(error: unknown): TerminalError | null {
  const words = wordsOf(error);
  switch (codeOf(error)) {
    case 'ACCESS_REFUSED':
      return refused(`RabbitMQ refuses the user or password of PIPE_URL (ACCESS_REFUSED: ${words})`, error);
    case 'NOT_ALLOWED':
      // "connection limit (100) is reached": temporary, other connections may close.
      if (/\blimit\b/.test(words)) return null;
      return refused(`RabbitMQ refuses the virtual host of PIPE_URL (NOT_ALLOWED: ${words})`, error);
    case 'VERSION_MISMATCH':
      return refused(`what answers at PIPE_URL does not speak AMQP 0-9-1 (${words})`, error);
    default:
      if (!CERTIFICATE.test(codeOf(error) ?? '')) return null;
      return refused(`the certificate of RabbitMQ is not trusted (${codeOf(error)}: ${words})`, error);
  }
}

export function refused(line: string, cause: unknown): TerminalError {
  return new TerminalError('bad_config', line, { cause });
}
