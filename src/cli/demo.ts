import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { networkInterfaces } from 'node:os';
import { join } from 'node:path';
import { type Config, variableOf } from '../base/config.ts';
import { messageOf, TerminalError } from '../base/errors.ts';
import { hostsOf, isLoopback } from '../base/loopback.ts';
import { keepPrivate } from '../base/private-file.ts';
import type { Runtime } from '../base/runtime.ts';
import type { Shop } from '../engine/shop.ts';
import type { HttpOptions } from '../http/context.ts';
import { actor } from '../model/actor.ts';

type Keys = Pick<HttpOptions, 'adminKeys' | 'authSecrets' | 'demo'> & {
  /** The generated admin key; null if one was given, which must not be printed. */
  readonly printed: string | null;
};

const KEYS_FILE = 'demo-keys.json';
const STOCK = 100;
const OPEN_MS = 30 * 24 * 3600 * 1000;

/**
 * Random keys, stored in the data folder (readable by its owner only) so that tokens survive a restart. Given keys also work, but
 * are neither printed nor used to sign: a demo with production secrets in its environment must not hand out production tokens.
 */
export function demoKeys(config: Config, { random }: Runtime): Keys {
  const file = join(config.data, KEYS_FILE);
  let kept: { adminKey: string; authSecret: string };
  try {
    kept = JSON.parse(readFileSync(file, 'utf8')) as typeof kept;
  } catch {
    kept = { adminKey: random.secret(18), authSecret: random.secret(32) };
    try {
      mkdirSync(config.data, { recursive: true, mode: 0o700 });
      writeFileSync(file, `${JSON.stringify(kept, null, 2)}\n`, { mode: 0o600 });
    } catch (error) {
      throw new TerminalError('bad_config', `the demo keys cannot be stored in ${config.data} (${messageOf(error)})`);
    }
  }
  keepPrivate(file);
  return {
    adminKeys: config.adminKeys ?? [{ name: 'demo', key: kept.adminKey }],
    authSecrets: config.authSecrets ?? [],
    demo: { secret: kept.authSecret, hosts: config.demoHosts },
    printed: config.adminKeys === null ? kept.adminKey : null,
  };
}

/** Anybody on this machine may buy in a demo and read its data, so it must not use servers of other machines. */
export function mustBeHere(config: Pick<Config, 'redisUrl' | 'databaseUrl' | 'pipeUrl'>): void {
  const own = new Set(
    Object.values(networkInterfaces())
      .flat()
      .map((each) => each?.address),
  );
  for (const name of ['redisUrl', 'databaseUrl', 'pipeUrl'] as const) {
    const url = config[name];
    if (url === null || url.startsWith('sqlite:')) continue;
    const elsewhere = hostsOf(url).find((host) => !isLoopback(host) && !own.has(host.replace(/^\[(.*)\]$/, '$1')));
    if (elsewhere === undefined) continue;
    throw new TerminalError(
      'bad_config',
      `${variableOf(name)} is on ${elsewhere}: --demo gives tokens to anybody, so its servers must be on this machine`,
    );
  }
}

/** Creates a new open sale with stock, at every start. */
export async function demoSale(shop: Shop): Promise<string> {
  const nowMs = shop.runtime.clock.now();
  const change = await shop.createSale(
    {
      name: 'Double Eleven vouchers',
      opensAtMs: nowMs,
      closesAtMs: nowMs + OPEN_MS,
      perBuyer: 1,
      payWithinSeconds: 900,
      items: [{ code: 'voucher-100', name: '100 off', price: { amount: 8000, currency: 'CNY' }, stock: STOCK }],
    },
    { by: actor('system', 'demo'), keyed: null },
  );
  if (change.outcome !== 'changed')
    throw new TerminalError('internal', `the demo sale was not created: ${change.outcome}`);
  return change.sale.id;
}

const TALK = [
  {
    author: 'ann',
    title: 'Is a voucher worth the queue?',
    content: 'A hundred of them, and five thousand of us.\nI was there in time, and got one.',
    comments: [
      {
        author: 'bob',
        content: 'Sold out before I could blink.',
        replies: [{ author: 'ann', content: 'Next sale, then.' }],
      },
      { author: 'cat', content: 'Clicked twice, got one. As it should be.', replies: [] },
    ],
    likedBy: ['bob', 'cat'],
  },
  {
    author: 'cat',
    title: 'What I watch while I wait',
    content: 'The page at / shows the stock as it goes.',
    comments: [],
    likedBy: ['ann'],
  },
];

/** Some posts, comments and likes, unless there are posts already. */
export async function demoTalk({ social }: Pick<Shop, 'social'>): Promise<void> {
  if ((await social.reader.posts.list({}, { limit: 1, before: null }, null)).length > 0) return;
  for (const { comments, likedBy, ...post } of TALK) {
    const made = await social.createPost(post, null);
    if (made.outcome !== 'ok') continue;
    const { id: postId } = made.post;
    for (const { author, content, replies } of comments) {
      const comment = await social.createComment({ postId, parentId: null, author, content }, null);
      if (comment.outcome !== 'ok') continue;
      const parentId = comment.comment.id;
      for (const reply of replies) await social.createComment({ postId, parentId, ...reply }, null);
    }
    for (const user of likedBy) await social.setLike('post', postId, user, true);
  }
}

export function demoWords(url: string, { printed }: Keys, saleId: string): string {
  const key = printed ?? '"$DOORBUSTER_ADMIN_KEY"';
  return `
  Doorbuster is open (demo: loopback only, random keys, stored in the data folder)

    Watch    ${url}/
    API      ${url}/docs
    Posts    ${url}/v1/posts
    Sale     ${saleId}: ${STOCK} vouchers, one for each buyer
    Admin    ${printed ?? 'the key in DOORBUSTER_ADMIN_KEY'}

  Send 5 000 buyers from another terminal (as often as you like: it first tops the stock up to ${STOCK}):

    npx doorbuster crowd --url ${url} --sale ${saleId} --buyers 5000 --top-up ${STOCK} --admin-key ${key}

  Press Ctrl-C to stop.
`;
}
