import { hash } from 'node:crypto';

/** What everybody gets who asks the same within a moment: written once, sent as it is. */
export interface PublicAnswer {
  readonly body: Buffer;
  /** As it stands in an ETag. */
  readonly tag: string;
}

export function publicAnswer(json: string): PublicAnswer {
  return { body: Buffer.from(json), tag: `"${hash('sha1', json, 'base64url')}"` };
}
