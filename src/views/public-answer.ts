import { hash } from 'node:crypto';

/** What everybody gets who asks the same within a moment: written once, sent as it is. */
export interface PublicAnswer {
  readonly body: Buffer;
  /** As it stands in an ETag. */
  readonly tag: string;
}

export function publicAnswer(content: string | Buffer): PublicAnswer {
  const body = typeof content === 'string' ? Buffer.from(content) : content;
  return { body, tag: `"${hash('sha1', content, 'base64url')}"` };
}
