import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import Type from 'typebox';
import * as S from '../../contract/schemas.ts';
import type { Actor, CommentPage, LikerPage } from '../../ledger/port.ts';
import { commentPlace, likePlace } from '../../model/cursor.ts';
import type { LikedKind } from '../../model/like.ts';
import type { CommentOrder } from '../../model/social.ts';
import { presentComment, presentLikes, presentPost } from '../../views/present-social.ts';
import type { PublicAnswer } from '../../views/public-answer.ts';
import type { Reader } from '../../views/public-pages.ts';
import { callerOf } from '../address.ts';
import type { Identity } from '../auth.ts';
import { readsOfList } from '../buyer-limits.ts';
import type { HttpContext } from '../context.ts';
import { Keyed } from '../keyed.ts';
import { mountOf } from '../mount.ts';
import { HttpProblem, invalid } from '../problem.ts';
import { publicRead } from '../reply.ts';
import { actorOf, pageOf } from '../request.ts';
import { NOT_MODIFIED, problems } from '../responses.ts';

/** The caller, set once the token is verified; null: nobody. A symbol cannot clash with names of the host application. */
const WHO = Symbol('doorbuster.who-reads');

declare module 'fastify' {
  interface FastifyRequest {
    [WHO]: Identity | null;
  }
}

interface OfId {
  Params: { id: string };
}

const BODY = ['malformed_json', 'body_too_large', 'unsupported_media_type', 'invalid_request'] as const;
const KEYED = ['idempotency_key_reused', 'idempotency_in_flight'] as const;
const BUYER = ['unauthenticated', 'forbidden'] as const;
const WORDS = {
  post: { tag: 'Posts', path: 'posts', one: 'a post', none: 'there is no such post' },
  comment: { tag: 'Comments', path: 'comments', one: 'a comment', none: 'there is no such comment' },
} as const;

/** Posts, comments and likes. Anybody may read; a caller who is known also sees what they like themselves. */
export function socialRoutes(app: FastifyInstance, context: HttpContext): void {
  const { shop, auth, buyerLimits } = context;
  const keyed = new Keyed(context);
  const params = S.OfId;
  const headers = Type.Object({ ...S.KeyHeader, ...S.BuyerHeader });
  const buyer = {
    'x-security': [{ buyer: [] }, { admin: [] }],
    headers: Type.Object(S.BuyerHeader),
    querystring: S.NoQuery,
  };
  const anyone = { 'x-security': [{}, { buyer: [] }, { admin: [] }] };
  app.decorateRequest(WHO, null);

  /** Refuses before the body is read. */
  const writes = async (request: FastifyRequest): Promise<void> => {
    const who = auth.ordering(request);
    request[WHO] = who;
    buyerLimits.take('social', who.buyer);
  };
  const readsAs = (request: FastifyRequest, who: Identity | null): void => {
    request[WHO] = who;
    if (who === null) return;
    const { limit } = request.query as { limit?: unknown };
    const isList = request.routeOptions.schema?.querystring !== S.NoQuery;
    buyerLimits.take('reads', who.buyer, isList ? readsOfList(limit) : 1);
  };
  const reads = async (request: FastifyRequest): Promise<void> => readsAs(request, auth.identify(request));
  const readsOwn = async (request: FastifyRequest): Promise<void> => readsAs(request, auth.ordering(request));
  const nameOf = (request: FastifyRequest): string => request[WHO]!.buyer!;
  /** The admin who acts for the buyer, for the audit; null: buyers themselves. */
  const actingOf = (request: FastifyRequest): Actor | null => {
    const who = request[WHO]!;
    return who.admin === null ? null : actorOf(who, request);
  };

  /** What is shared by the public does not go to callers who are known, nor the other way round, whatever cache is in between. */
  const answerRead = async (
    request: FastifyRequest,
    reply: FastifyReply,
    none: string,
    read: {
      shared: (reader: Reader) => Promise<PublicAnswer | null>;
      own: (asking: { reader: string | null }) => Promise<object | null>;
    },
  ): Promise<FastifyReply> => {
    // With CORS_ORIGINS it names the origin already.
    const vary = [reply.getHeader('vary') ?? [], 'authorization, doorbuster-buyer'].flat().join(', ');
    reply.header('vary', vary);
    const who = request[WHO];
    const found = who === null ? await read.shared(() => callerOf(request)) : await read.own({ reader: who.buyer });
    if (found === null) throw new HttpProblem('not_found', none);
    if (who === null) return publicRead(request, reply, found as PublicAnswer);
    return reply.header('cache-control', 'no-store').send(found);
  };

  // Posts

  app.post<{ Body: S.NewPostBody }>(
    '/v1/posts',
    {
      schema: {
        ...buyer,
        tags: [WORDS.post.tag],
        summary: 'Write a post',
        headers,
        body: S.NewPost,
        response: { 201: S.Post, ...problems(...BODY, ...BUYER, ...KEYED) },
      },
      onRequest: writes,
    },
    async (request, reply) => {
      const { title, content } = request.body;
      const call = keyed.callOf(request[WHO]!, request, { operation: 'post.create', subject: '' });
      const post = { author: nameOf(request), title, content };
      const made = await buyerLimits.write(post.author, title.length + content.length, (mayBegin) =>
        keyed.inTurn(call, () => shop.get().social.createPost(post, call, actingOf(request), mayBegin)),
      );
      if (made.outcome !== 'ok') throw new HttpProblem(made.outcome);
      if (made.replayed) reply.header('idempotent-replayed', 'true');
      const shown = presentPost(made.post);
      return reply
        .code(201)
        .header('location', `${mountOf(request)}${app.prefix}/v1/posts/${shown.id}`)
        .send(shown);
    },
  );

  app.get<{ Querystring: S.AskedPage & { author?: string } }>(
    '/v1/posts',
    {
      schema: {
        ...anyone,
        tags: [WORDS.post.tag],
        summary: 'List posts, newest first; a page of long posts may be shorter than its limit',
        querystring: S.PostsQuery,
        response: { 200: S.listOf(S.Post), 304: NOT_MODIFIED, ...problems('unauthenticated', 'invalid_request') },
      },
      onRequest: reads,
    },
    async (request, reply) => {
      const { author, ...asked } = request.query;
      const filter = author === undefined ? {} : { author };
      const { pages } = shop.get().social;
      return await answerRead(request, reply, WORDS.post.none, {
        shared: (reader) => pages.publicPosts(filter, pageOf(asked), reader),
        own: (asking) => pages.posts(asking, filter, pageOf(asked)),
      });
    },
  );

  app.get<OfId>(
    '/v1/posts/:id',
    {
      schema: {
        ...anyone,
        tags: [WORDS.post.tag],
        summary: 'Get a post',
        params,
        querystring: S.NoQuery,
        response: { 200: S.Post, 304: NOT_MODIFIED, ...problems('unauthenticated', 'not_found', 'invalid_request') },
      },
      onRequest: reads,
    },
    async (request, reply) => {
      const { id } = request.params;
      const { pages, reader: from } = shop.get().social;
      return await answerRead(request, reply, WORDS.post.none, {
        shared: (reader) => pages.publicPost(id, reader),
        own: async ({ reader }) => {
          const post = await from.posts.get(id, reader);
          return post && presentPost(post);
        },
      });
    },
  );

  app.patch<OfId & { Body: S.PostPatchBody }>(
    '/v1/posts/:id',
    {
      schema: {
        ...buyer,
        tags: [WORDS.post.tag],
        summary: 'Edit a post, as its author',
        params,
        body: S.PostPatch,
        response: { 200: S.Post, ...problems(...BODY, ...BUYER, 'not_found', 'version_conflict') },
      },
      onRequest: writes,
    },
    async (request) => {
      const edit = { by: nameOf(request), ...request.body };
      const { title = '', content = '' } = request.body;
      const edited = await buyerLimits.write(edit.by, title.length + content.length, (mayBegin) =>
        shop.get().social.editPost(request.params.id, edit, actingOf(request), mayBegin),
      );
      if (edited.outcome === 'ok') return presentPost(edited.record);
      throw refused('post', edited);
    },
  );

  // Comments

  app.post<OfId & { Body: S.NewCommentBody }>(
    '/v1/posts/:id/comments',
    {
      schema: {
        ...buyer,
        tags: [WORDS.comment.tag],
        summary: 'Comment on a post, or reply to one of its comments',
        params,
        headers,
        body: S.NewComment,
        response: { 201: S.Comment, ...problems(...BODY, ...BUYER, ...KEYED, 'not_found') },
      },
      onRequest: writes,
    },
    async (request, reply) => {
      const { id: postId } = request.params;
      const { content, parentId = null } = request.body;
      const call = keyed.callOf(request[WHO]!, request, { operation: 'comment.create', subject: postId });
      const comment = { postId, parentId, author: nameOf(request), content };
      const made = await buyerLimits.write(comment.author, content.length, (mayBegin) =>
        keyed.inTurn(call, () => shop.get().social.createComment(comment, call, actingOf(request), mayBegin)),
      );
      switch (made.outcome) {
        case 'ok':
          break;
        case 'other_post':
          throw invalid('/parentId', 'is a comment on another post');
        case 'not_found':
          throw new HttpProblem('not_found', WORDS[made.what === 'post' ? 'post' : 'comment'].none);
        default:
          throw new HttpProblem(made.outcome);
      }
      if (made.replayed) reply.header('idempotent-replayed', 'true');
      const shown = presentComment(made.comment);
      return reply
        .code(201)
        .header('location', `${mountOf(request)}${app.prefix}/v1/comments/${shown.id}`)
        .send(shown);
    },
  );

  app.get<OfId & { Querystring: S.AskedPage & { parentId?: string; sort: CommentOrder } }>(
    '/v1/posts/:id/comments',
    {
      schema: {
        ...anyone,
        tags: [WORDS.comment.tag],
        summary: 'List the comments on a post, or the replies to one of them',
        params,
        querystring: S.CommentsQuery,
        response: {
          200: S.listOf(S.Comment),
          304: NOT_MODIFIED,
          ...problems('unauthenticated', 'not_found', 'invalid_request'),
        },
      },
      onRequest: reads,
    },
    async (request, reply) => {
      const { limit, cursor, parentId = null, sort: order } = request.query;
      const page: CommentPage = { order, limit, before: cursor === undefined ? null : commentPlace(cursor) };
      const of = { postId: request.params.id, parentId };
      const { pages } = shop.get().social;
      return await answerRead(request, reply, WORDS.post.none, {
        shared: (reader) => pages.publicComments(of, page, reader),
        own: (asking) => pages.comments(asking, of, page),
      });
    },
  );

  app.get<OfId>(
    '/v1/comments/:id',
    {
      schema: {
        ...anyone,
        tags: [WORDS.comment.tag],
        summary: 'Get a comment',
        params,
        querystring: S.NoQuery,
        response: { 200: S.Comment, 304: NOT_MODIFIED, ...problems('unauthenticated', 'not_found', 'invalid_request') },
      },
      onRequest: reads,
    },
    async (request, reply) => {
      const { id } = request.params;
      const { pages, reader: from } = shop.get().social;
      return await answerRead(request, reply, WORDS.comment.none, {
        shared: (reader) => pages.publicComment(id, reader),
        own: async ({ reader }) => {
          const comment = await from.comments.get(id, reader);
          return comment && presentComment(comment);
        },
      });
    },
  );

  app.patch<OfId & { Body: S.CommentPatchBody }>(
    '/v1/comments/:id',
    {
      schema: {
        ...buyer,
        tags: [WORDS.comment.tag],
        summary: 'Edit a comment, as its author',
        params,
        body: S.CommentPatch,
        response: { 200: S.Comment, ...problems(...BODY, ...BUYER, 'not_found', 'version_conflict') },
      },
      onRequest: writes,
    },
    async (request) => {
      const edit = { by: nameOf(request), ...request.body };
      const edited = await buyerLimits.write(edit.by, edit.content.length, (mayBegin) =>
        shop.get().social.editComment(request.params.id, edit, actingOf(request), mayBegin),
      );
      if (edited.outcome === 'ok') return presentComment(edited.record);
      throw refused('comment', edited);
    },
  );

  // Of posts and comments alike

  const kinds = {
    post: (id: string, by: string, acting: Actor | null) => shop.get().social.deletePost(id, by, acting),
    comment: (id: string, by: string, acting: Actor | null) => shop.get().social.deleteComment(id, by, acting),
  };
  for (const kind of ['post', 'comment'] as const) {
    const { tag, path, one, none } = WORDS[kind];

    app.delete<OfId>(
      `/v1/${path}/:id`,
      {
        schema: {
          ...buyer,
          tags: [tag],
          summary: `Delete ${one}, as its author`,
          params,
          response: { 200: S.Deleted, ...problems(...BODY, ...BUYER, 'not_found') },
        },
        onRequest: writes,
      },
      async (request) => {
        const { id } = request.params;
        const outcome = await kinds[kind](id, nameOf(request), actingOf(request));
        if (outcome !== 'ok') throw refused(kind, { outcome });
        return { id, deleted: true };
      },
    );

    for (const method of ['PUT', 'DELETE'] as const) {
      const liked = method === 'PUT';
      app.route<OfId>({
        method,
        url: `/v1/${path}/:id/like`,
        schema: {
          ...buyer,
          tags: ['Likes'],
          summary: liked ? `Like ${one}; repeating it changes nothing` : `Take a like of ${one} back`,
          params,
          response: { 200: S.LikeAnswer, ...problems(...BODY, ...BUYER, 'not_found') },
        },
        onRequest: writes,
        handler: async (request) => {
          const { id } = request.params;
          const set = await shop.get().social.setLike(kind, id, nameOf(request), liked, actingOf(request));
          if (set.outcome !== 'ok') throw new HttpProblem('not_found', none);
          return { liked: set.liked, changed: set.changed, likes: presentLikes(set.likes) };
        },
      });
    }

    app.get<OfId & { Querystring: S.AskedPage }>(
      `/v1/${path}/:id/likes`,
      {
        schema: {
          ...anyone,
          tags: ['Likes'],
          summary: `List who likes ${one}, newest first, as stored in the ledger`,
          params,
          querystring: S.LikersQuery,
          response: {
            200: S.listOf(S.Liker),
            304: NOT_MODIFIED,
            ...problems('unauthenticated', 'not_found', 'invalid_request'),
          },
        },
        onRequest: reads,
      },
      async (request, reply) => {
        const { id } = request.params;
        const page = likePage(request.query);
        const { pages } = shop.get().social;
        return await answerRead(request, reply, none, {
          shared: (reader) => pages.publicLikers(kind, id, page, reader),
          own: (asking) => pages.likers(asking, kind, id, page),
        });
      },
    );
  }

  // The caller's own

  app.get<{ Querystring: S.AskedPage & { kind: LikedKind } }>(
    '/v1/me/likes',
    {
      schema: {
        ...buyer,
        tags: ['Likes'],
        summary: 'List what the caller likes, newest first, as stored; a page may be shorter than its limit',
        querystring: S.MyLikesQuery,
        response: { 200: S.listOf(S.LikedSubject), ...problems(...BUYER, 'invalid_request') },
      },
      onRequest: readsOwn,
    },
    async (request, reply) => {
      const { kind, ...asked } = request.query;
      const liked = await shop.get().social.pages.likesOf(nameOf(request), kind, likePage(asked));
      return reply.header('cache-control', 'no-store').send(liked);
    },
  );

  app.get<{ Querystring: S.AskedPage }>(
    '/v1/me/comments',
    {
      schema: {
        ...buyer,
        tags: [WORDS.comment.tag],
        summary: 'List the caller’s comments, newest first',
        querystring: S.SalesQuery,
        response: { 200: S.listOf(S.Comment), ...problems(...BUYER, 'invalid_request') },
      },
      onRequest: readsOwn,
    },
    async (request, reply) => {
      const written = await shop.get().social.pages.commentsBy(nameOf(request), pageOf(request.query));
      return reply.header('cache-control', 'no-store').send(written);
    },
  );
}

function likePage({ limit, cursor }: S.AskedPage): LikerPage {
  return { limit, before: cursor === undefined ? null : likePlace(cursor) };
}

function refused(
  kind: LikedKind,
  refusal:
    | { readonly outcome: 'not_found' | 'forbidden' }
    | { readonly outcome: 'version_conflict'; readonly record: { readonly version: number } },
): HttpProblem {
  switch (refusal.outcome) {
    case 'not_found':
      return new HttpProblem('not_found', WORDS[kind].none);
    case 'forbidden':
      return new HttpProblem('forbidden', `only the author may change ${WORDS[kind].one}`);
    case 'version_conflict':
      return new HttpProblem('version_conflict', `it has version ${refusal.record.version} now`);
  }
}
