import { hash } from 'node:crypto';

/** The answer for all who ask the same at about the same time: written once, and sent as it is. */
export interface PublicAnswer {
  readonly body: Buffer;
  /** As an ETag header has it. */
  readonly tag: string;
}

export function publicAnswer(content: string | Buffer): PublicAnswer {
  const body = typeof content === 'string' ? Buffer.from(content) : content;
  return { body, tag: `"${hash('sha1', content, 'base64url')}"` };
}
