import { connect } from 'node:net';

/** An error that Redis has answered. */
export class RedisReplyError extends Error {}

/**
 * Runs one command on a new connection, in RESP 2, for tests that read a Redis without the client under test.
 * Strings come as strings, integers as numbers, nil as null, an error is thrown (or, inside an array, returned).
 */
export function redisCommand(host: string, port: number, args: readonly string[], withinMs = 5_000): Promise<unknown> {
  return new Promise((resolve, reject) => {
    const socket = connect({ host, port, noDelay: true });
    let heard = Buffer.alloc(0);
    const settle = (value: unknown): void => {
      clearTimeout(late);
      socket.destroy();
      if (value instanceof Error) reject(value);
      else resolve(value);
    };
    const late = setTimeout(() => settle(new Error(`${args[0]}: no reply within ${withinMs} ms`)), withinMs);
    socket.on('error', settle);
    socket.on('close', () => settle(new Error(`${args[0]}: the connection ended without a reply`)));
    socket.on('data', (chunk) => {
      heard = Buffer.concat([heard, chunk]);
      const reply = parseReply(heard, 0);
      if (reply) settle(reply.value);
    });
    socket.write(`*${args.length}\r\n${args.map((arg) => `$${Buffer.byteLength(arg)}\r\n${arg}\r\n`).join('')}`);
  });
}

/** Null while the reply is incomplete. */
function parseReply(bytes: Buffer, from: number): { value: unknown; end: number } | null {
  const lineEnd = bytes.indexOf('\r\n', from);
  if (lineEnd < 0) return null;
  const line = bytes.toString('utf8', from + 1, lineEnd);
  let end = lineEnd + 2;
  switch (String.fromCharCode(bytes[from]!)) {
    case '+':
      return { value: line, end };
    case '-':
      return { value: new RedisReplyError(line), end };
    case ':':
      return { value: Number(line), end };
    case '$': {
      if (line === '-1') return { value: null, end };
      const last = end + Number(line);
      return last + 2 > bytes.length ? null : { value: bytes.toString('utf8', end, last), end: last + 2 };
    }
    case '*': {
      if (line === '-1') return { value: null, end };
      const values: unknown[] = [];
      while (values.length < Number(line)) {
        const next = parseReply(bytes, end);
        if (!next) return null;
        values.push(next.value);
        end = next.end;
      }
      return { value: values, end };
    }
    default:
      return { value: new Error(`not RESP 2: ${bytes.toString('latin1', from, lineEnd)}`), end };
  }
}
