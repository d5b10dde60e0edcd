import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { createDoorbuster, type Doorbuster, type DoorbusterOptions } from '../../src/index.ts';
import { ADMIN_KEY, type Answer, AUTH_SECRET, type CallOptions, caller, temporaryFolder } from './server.ts';

export interface SocialShop {
  library: Doorbuster;
  url: string;
  call(method: string, path: string, options?: CallOptions): Promise<Answer>;
  /** A new post of this author. */
  post(author: string, more?: object, options?: CallOptions): Promise<Answer['body']>;
  comment(author: string, postId: string, more?: object): Promise<Answer['body']>;
  like(user: string, path: string): Promise<Answer>;
  /** All rows of a list, page by page. */
  all(path: string, options?: CallOptions): Promise<Answer['body'][]>;
  close(): Promise<void>;
}

const CALM = { rateLimitBuyerWrites: 1000, rateLimitBuyerReads: 10_000, eventLoopDelayMsMax: 60_000 };

/** A shop in this process, over HTTP. */
export async function startSocialShop(options: DoorbusterOptions = {}): Promise<SocialShop> {
  const where = options.database === undefined ? { data: temporaryFolder() } : {};
  const library = await createDoorbuster({
    ...where,
    adminKey: ADMIN_KEY,
    authSecret: AUTH_SECRET,
    ...options,
    http: { ...CALM, ...options.http },
  });
  const server = createServer(library.handler());
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const call = caller(url);
  const made = async (path: string, author: string, body: object, more?: CallOptions): Promise<Answer['body']> => {
    const answer = await call('POST', path, { buyer: author, body, ...more });
    if (answer.status !== 201) throw new Error(`${path}: ${answer.status} ${JSON.stringify(answer.body)}`);
    return answer.body;
  };
  return {
    library,
    url,
    call,
    post: (author, more = {}, sent) => made('/v1/posts', author, { title: 'Queue', content: 'Long.', ...more }, sent),
    comment: (author, postId, more = {}) => made(`/v1/posts/${postId}/comments`, author, { content: 'Yes.', ...more }),
    like: (user, path) => call('PUT', `${path}/like`, { buyer: user }),
    async all(path, sent = { admin: true }) {
      const rows: Answer['body'][] = [];
      for (let cursor: string | null = ''; cursor !== null; ) {
        const next: string = cursor === '' ? '' : `&cursor=${encodeURIComponent(cursor)}`;
        const { status, body } = await call('GET', `${path}${path.includes('?') ? '&' : '?'}limit=200${next}`, sent);
        if (status !== 200) throw new Error(`${path}: ${status} ${JSON.stringify(body)}`);
        rows.push(...body.data);
        cursor = body.nextCursor;
      }
      return rows;
    },
    async close() {
      server.closeAllConnections();
      await library.close();
    },
  };
}
