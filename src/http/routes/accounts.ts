import type { FastifyInstance, FastifyReply } from 'fastify';
import * as S from '../../contract/schemas.ts';
import { type AccountRecord, storedEmail } from '../../model/account.ts';
import { iso } from '../../views/present.ts';
import { accountTokens } from '../account-tokens.ts';
import { addressOf, inNetwork } from '../address.ts';
import { denied } from '../auth.ts';
import { bodyBytesMax, type HttpContext } from '../context.ts';
import { HttpProblem } from '../problem.ts';
import { keyOf } from '../request.ts';
import { problems } from '../responses.ts';

const BODY = ['malformed_json', 'body_too_large', 'unsupported_media_type', 'invalid_request'] as const;

/** Registration and sign-in, with ACCOUNTS=on. */
export function accountRoutes(app: FastifyInstance, { shop, options, passwordLimits }: HttpContext): void {
  const tags = ['Accounts'];
  const issue = accountTokens(options);

  app.post<{ Body: S.NewAccountBody }>(
    '/v1/accounts',
    {
      bodyLimit: bodyBytesMax(S.NewAccount),
      schema: {
        tags,
        summary: 'Register an account and sign in',
        headers: S.KeyHeaders,
        querystring: S.NoQuery,
        body: S.NewAccount,
        response: { 201: S.SignedIn, ...problems('username_taken', 'email_taken', ...BODY) },
      },
    },
    async (request, reply) => {
      const isKeyed = keyOf(request) !== null;
      const { username, email, password } = request.body;
      const address = addressOf(request);
      const registered = await passwordLimits.register(address, async () => {
        const result = await shop.get().registerAccount({ username, email, password }, inNetwork(address), address);
        return { result, counts: result.ok || result.code !== 'invalid_request' };
      });
      if (registered.ok) return signedIn(reply, registered.account);
      if (registered.code === 'invalid_request') {
        const [first] = registered.errors;
        const detail = `${first!.path}: ${first!.message}`;
        throw new HttpProblem(registered.code, detail, { errors: registered.errors });
      }
      // A repeat of a call whose answer was lost. The key is not stored: its caller is unknown, and an answer with a token belongs to
      // whoever has the password. So the same name, address and password are the repeat, and it is limited like a sign-in.
      if (isKeyed && registered.code === 'username_taken') {
        const account = await repeated(username, email, password, address);
        if (account !== null) return signedIn(reply.header('idempotent-replayed', 'true'), account);
      }
      throw new HttpProblem(registered.code);
    },
  );

  app.post<{ Body: S.NewSessionBody }>(
    '/v1/sessions',
    {
      bodyLimit: bodyBytesMax(S.NewSession),
      schema: {
        tags,
        summary: 'Sign in to an account: a buyer’s token for 24 hours',
        querystring: S.NoQuery,
        body: S.NewSession,
        response: { 201: S.SignedIn, ...problems('unauthenticated', ...BODY) },
      },
    },
    async (request, reply) => {
      const { username, password } = request.body;
      const address = addressOf(request);
      const judge = () => shop.get().signIn(username, password, inNetwork(address));
      const account = await passwordLimits.signIn(address, username, judge);
      if (account === null) throw denied('the username or the password is wrong');
      return signedIn(reply, account);
    },
  );

  /**
   * The account, or null: name, e-mail address or password is another one. Which of them cannot be told: the password is judged and
   * counted whatever the address is, and where it may not be judged now, that is no answer of its own.
   */
  async function repeated(username: string, email: string, password: string, origin: string) {
    const judge = async (): Promise<AccountRecord | null> => {
      const account = await shop.get().signIn(username, password, inNetwork(origin));
      return account?.email === storedEmail(email) ? account : null;
    };
    try {
      return await passwordLimits.signIn(origin, username, judge);
    } catch (error) {
      if (error instanceof HttpProblem && error.code === 'rate_limited') return null;
      throw error;
    }
  }

  function signedIn(reply: FastifyReply, { id, subject, username, email, createdAtMs }: AccountRecord): FastifyReply {
    const account = { id, subject, username, email, createdAt: iso(createdAtMs) };
    return reply
      .code(201)
      .header('cache-control', 'no-store')
      .send({ account, token: issue(subject) });
  }
}
