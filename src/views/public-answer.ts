import { createHash, hash } from 'node:crypto';

/** The answer for all who ask the same at about the same time: written once, and sent as it is. */
export interface PublicAnswer {
  readonly body: Buffer;
  /** Of the body, which need not be made for it. */
  readonly bytes: number;
  /** As an ETag header has it. */
  readonly tag: string;
}

export function publicAnswer(content: string | Buffer): PublicAnswer {
  const body = typeof content === 'string' ? Buffer.from(content) : content;
  return { body, bytes: body.length, tag: `"${hash('sha1', content, 'base64url')}"` };
}

/** Part of a list, or a single thing, as it is sent. `cursor`: where the next page begins, behind this one. */
export interface Written {
  readonly cursor: string;
  readonly json: string;
}

const BEGIN = Buffer.from('{"data":[');
const COMMA = Buffer.from(',');

/**
 * A list as it is sent, encoded and hashed once, when it is read. Whoever asks for fewer rows gets the beginning of the same bytes:
 * a limit that nobody asked for before costs a copy of what is sent, and a 304 costs nothing.
 */
export class PublicList {
  /** There are rows behind the last one. */
  readonly #more: boolean;
  readonly #cursors: readonly string[];
  /** The beginning of the body, up to its last row. */
  readonly #rows: Buffer;
  /** Where each row ends in it. */
  readonly #ends: number[] = [];
  readonly #hash: string;
  readonly #all: PublicAnswer;
  /** What was asked for last: most readers ask for the same. */
  #some: { readonly length: number; readonly answer: PublicAnswer } | null = null;

  constructor(rows: readonly Written[], more: boolean) {
    this.#more = more;
    this.#cursors = rows.map(({ cursor }) => cursor);
    const parts: Buffer[] = [BEGIN];
    let end = BEGIN.length;
    for (const [at, { json }] of rows.entries()) {
      if (at > 0) parts.push(COMMA);
      const row = Buffer.from(json);
      parts.push(row);
      end += row.length + (at > 0 ? COMMA.length : 0);
      this.#ends.push(end);
    }
    const tail = this.#tailOf(rows.length);
    const body = Buffer.concat([...parts, tail]);
    this.#rows = body.subarray(0, end);
    this.#hash = createHash('sha1').update(body).update(JSON.stringify(this.#cursors)).digest('base64url');
    this.#all = { body, bytes: body.length, tag: this.#tagOf(rows.length) };
  }

  /** In memory. */
  get bytes(): number {
    return this.#all.bytes;
  }

  /** The cursor behind the first `limit` rows; null: there are no others. */
  next(limit: number): string | null {
    const length = Math.min(limit, this.#cursors.length);
    return this.#more || this.#cursors.length > length ? this.#cursors[length - 1]! : null;
  }

  answer(limit: number): PublicAnswer {
    const length = Math.min(limit, this.#cursors.length);
    if (length === this.#cursors.length) return this.#all;
    if (this.#some?.length === length) return this.#some.answer;
    const rows = this.#rows.subarray(0, this.#ends[length - 1]);
    const answer = new Beginning(rows, this.#tailOf(length), this.#tagOf(length));
    this.#some = { length, answer };
    return answer;
  }

  #tailOf(length: number): Buffer {
    return Buffer.from(`],"nextCursor":${JSON.stringify(this.next(length))}}`);
  }

  #tagOf(length: number): string {
    return `"${this.#hash}-${length}"`;
  }
}

class Beginning implements PublicAnswer {
  readonly bytes: number;
  readonly tag: string;
  readonly #rows: Buffer;
  readonly #tail: Buffer;
  #body: Buffer | null = null;

  constructor(rows: Buffer, tail: Buffer, tag: string) {
    this.bytes = rows.length + tail.length;
    this.tag = tag;
    this.#rows = rows;
    this.#tail = tail;
  }

  get body(): Buffer {
    this.#body ??= Buffer.concat([this.#rows, this.#tail]);
    return this.#body;
  }
}
