import Type from 'typebox';
import { TerminalError } from '../base/errors.ts';
import { bodyFingerprint } from '../base/idempotency.ts';
import * as S from '../contract/schemas.ts';
import { faults } from '../contract/validate.ts';
import type { ShopSocial } from '../engine/social.ts';
import type { KeyedCall } from '../ledger/port.ts';
import { type Actor, actorText } from '../model/actor.ts';
import { commentPlace, likePlace } from '../model/cursor.ts';
import type { LikedKind } from '../model/like.ts';
import type { Fault } from '../model/sale.ts';
import type { CommentOrder } from '../model/social.ts';
import { KEY_PATTERN } from '../model/text.ts';
import {
  type Comment,
  type LikedBy,
  type LikedSubject,
  type Likes,
  type Post,
  presentComment,
  presentLikes,
  presentPost,
} from '../views/present-social.ts';
import type { Listed } from '../views/social-pages.ts';

export type PostResult =
  | { ok: true; post: Post; replayed: boolean }
  | { ok: false; code: 'not_found' | 'forbidden' | 'version_conflict' | 'idempotency_key_reused' }
  | { ok: false; code: 'invalid_request'; errors: Fault[] };

export type CommentResult =
  | { ok: true; comment: Comment; replayed: boolean }
  | { ok: false; code: 'not_found' | 'forbidden' | 'version_conflict' | 'idempotency_key_reused' }
  | { ok: false; code: 'invalid_request'; errors: Fault[] };

export type DeleteResult = { ok: true } | { ok: false; code: 'not_found' | 'forbidden' };

export type LikeResult =
  | { ok: true; liked: boolean; changed: boolean; likes: Likes }
  | { ok: false; code: 'not_found' }
  | { ok: false; code: 'invalid_request'; errors: Fault[] };

export interface AskedPage {
  /** Default 50, at most 200. */
  limit?: number;
  /** `nextCursor` of the page before. */
  cursor?: string;
}

/** What can be liked. */
export type LikeSubject = { post: string } | { comment: string };

/** `reader`: also say whether this buyer likes it. Null: there is no such post or comment, or it was deleted. */
export interface SocialLibrary {
  readonly posts: {
    create(post: { author: string; title: string; content: string; key?: string }): Promise<PostResult>;
    get(postId: string, reader?: string): Promise<Post | null>;
    list(filter?: AskedPage & { author?: string; reader?: string }): Promise<Listed<Post>>;
    edit(postId: string, edit: { by: string; title?: string; content?: string; version: number }): Promise<PostResult>;
    /** Deleting it again changes nothing. */
    delete(postId: string, by: string): Promise<DeleteResult>;
  };
  readonly comments: {
    create(comment: {
      postId: string;
      /** The comment that it replies to. */
      parentId?: string;
      author: string;
      content: string;
      key?: string;
    }): Promise<CommentResult>;
    get(commentId: string, reader?: string): Promise<Comment | null>;
    list(
      postId: string,
      filter?: AskedPage & { parentId?: string; sort?: CommentOrder; reader?: string },
    ): Promise<Listed<Comment> | null>;
    by(author: string, page?: AskedPage): Promise<Listed<Comment>>;
    edit(commentId: string, edit: { by: string; content: string; version: number }): Promise<CommentResult>;
    delete(commentId: string, by: string): Promise<DeleteResult>;
  };
  readonly likes: {
    /** Repeating it changes nothing. */
    like(subject: LikeSubject, user: string): Promise<LikeResult>;
    unlike(subject: LikeSubject, user: string): Promise<LikeResult>;
    /** Who likes it, newest first, as stored in the ledger. */
    likers(subject: LikeSubject, page?: AskedPage): Promise<Listed<LikedBy> | null>;
    /** What this user likes, newest first, as stored in the ledger. */
    of(user: string, filter?: AskedPage & { kind?: LikedKind }): Promise<Listed<LikedSubject>>;
  };
}

const Key = Type.Optional(Type.String({ pattern: KEY_PATTERN }));
const NewPost = Type.Object({ ...S.NewPost.properties, author: S.Buyer, key: Key });
const PostPatch = Type.Object({ ...S.PostPatch.properties, by: S.Buyer });
const NewComment = Type.Object({ ...S.NewComment.properties, postId: Type.String(), author: S.Buyer, key: Key });
const CommentPatch = Type.Object({ ...S.CommentPatch.properties, by: S.Buyer });
const Reader = { reader: Type.Optional(S.Buyer) };
const PostsQuery = Type.Object({ ...S.PostsQuery.properties, ...Reader });
const CommentsQuery = Type.Object({ ...S.CommentsQuery.properties, ...Reader });

/** Posts, comments and likes as the library offers them: with the schemas of HTTP. */
export function socialLibrary(social: ShopSocial, by: Actor): SocialLibrary {
  const callOf = (operation: string, subject: string, author: string, key: string | undefined, body: object) =>
    key === undefined ? null : keyedCall(by, { operation, subject, author, key, body });
  return {
    posts: {
      async create(body) {
        const { key, ...post } = objectOf(body);
        const errors = faultless(NewPost, given({ ...post, key }));
        if (errors) return { ok: false, code: 'invalid_request', errors };
        const made = await social.createPost(post, callOf('post.create', '', post.author, key, post));
        if (made.outcome !== 'ok') return { ok: false, code: made.outcome };
        return { ok: true, post: presentPost(made.post), replayed: made.replayed };
      },
      async get(postId, reader) {
        const post = await social.reader.posts.get(postId, reader ?? null);
        return post && presentPost(post);
      },
      async list(filter = {}) {
        const { limit, cursor, author, reader = null } = asked(PostsQuery, filter);
        const page = { limit, before: cursor ?? null };
        return await social.pages.posts({ reader }, author === undefined ? {} : { author }, page);
      },
      async edit(postId, edit) {
        const errors = faultless(PostPatch, given(objectOf(edit)));
        if (errors) return { ok: false, code: 'invalid_request', errors };
        const edited = await social.editPost(postId, given(edit));
        if (edited.outcome !== 'ok') return { ok: false, code: edited.outcome };
        return { ok: true, post: presentPost(edited.record), replayed: false };
      },
      async delete(postId, author) {
        return deleted(await social.deletePost(postId, author));
      },
    },
    comments: {
      async create(body) {
        const { key, ...comment } = objectOf(body);
        const errors = faultless(NewComment, given({ ...comment, key }));
        if (errors) return { ok: false, code: 'invalid_request', errors };
        const { postId, parentId = null, author, content } = comment;
        const call = callOf('comment.create', postId, author, key, { content, parentId });
        const made = await social.createComment({ postId, parentId, author, content }, call);
        if (made.outcome === 'ok') {
          return { ok: true, comment: presentComment(made.comment), replayed: made.replayed };
        }
        if (made.outcome !== 'other_post') return { ok: false, code: made.outcome };
        const other = { path: '/parentId', message: 'is a comment on another post' };
        return { ok: false, code: 'invalid_request', errors: [other] };
      },
      async get(commentId, reader) {
        const comment = await social.reader.comments.get(commentId, reader ?? null);
        return comment && presentComment(comment);
      },
      async list(postId, filter = {}) {
        const { limit, cursor, parentId = null, sort = 'newest', reader = null } = asked(CommentsQuery, filter);
        const page = { order: sort, limit, before: cursor === undefined ? null : commentPlace(cursor) };
        return await social.pages.comments({ reader }, { postId, parentId }, page);
      },
      async by(author, page = {}) {
        const { limit, cursor } = asked(S.SalesQuery, page);
        return await social.pages.commentsBy(author, { limit, before: cursor ?? null });
      },
      async edit(commentId, edit) {
        const errors = faultless(CommentPatch, given(objectOf(edit)));
        if (errors) return { ok: false, code: 'invalid_request', errors };
        const edited = await social.editComment(commentId, edit);
        if (edited.outcome !== 'ok') return { ok: false, code: edited.outcome };
        return { ok: true, comment: presentComment(edited.record), replayed: false };
      },
      async delete(commentId, author) {
        return deleted(await social.deleteComment(commentId, author));
      },
    },
    likes: {
      like: (subject, user) => like(social, subject, user, true),
      unlike: (subject, user) => like(social, subject, user, false),
      async likers(subject, page = {}) {
        const { limit, cursor } = asked(S.LikersQuery, page);
        const before = cursor === undefined ? null : likePlace(cursor);
        const parts = partsOf(subject);
        if (parts === null) throw new TerminalError('invalid_request', `subject ${SUBJECT_WORDS}`);
        return await social.pages.likers({ reader: null }, ...parts, { limit, before });
      },
      async of(user, filter = {}) {
        const { limit, cursor, kind = 'post' } = asked(S.MyLikesQuery, filter);
        const before = cursor === undefined ? null : likePlace(cursor);
        return await social.pages.likesOf(user, kind, { limit, before });
      },
    },
  };
}

async function like(social: ShopSocial, subject: LikeSubject, user: string, liked: boolean): Promise<LikeResult> {
  const errors = faultless(Type.Object({ user: S.Buyer }), { user });
  if (errors) return { ok: false, code: 'invalid_request', errors };
  const parts = partsOf(subject);
  if (parts === null) {
    return { ok: false, code: 'invalid_request', errors: [{ path: '/subject', message: SUBJECT_WORDS }] };
  }
  const set = await social.setLike(...parts, user, liked);
  if (set.outcome !== 'ok') return { ok: false, code: set.outcome };
  return { ok: true, liked: set.liked, changed: set.changed, likes: presentLikes(set.likes) };
}

const SUBJECT_WORDS = 'must be { post: id } or { comment: id }';

/** Null: a program without types gave something else, such as the bare id. */
function partsOf(subject: LikeSubject): [LikedKind, string] | null {
  const members = Object.entries(given(objectOf(subject)));
  const [kind, id] = members[0] ?? [];
  if (members.length !== 1 || (kind !== 'post' && kind !== 'comment') || typeof id !== 'string') return null;
  return [kind, id];
}

/** What a program without types left out has no members, and the schema says which are missing. */
function objectOf<T extends object>(value: T): T {
  return typeof value === 'object' && value !== null ? value : ({} as T);
}

function deleted(outcome: 'ok' | 'not_found' | 'forbidden'): DeleteResult {
  return outcome === 'ok' ? { ok: true } : { ok: false, code: outcome };
}

interface Keyed {
  operation: string;
  subject: string;
  author: string;
  key: string;
  body: object;
}

function keyedCall(by: Actor, { operation, subject, author, key, body }: Keyed): KeyedCall {
  return { caller: actorText(by), actingFor: author, operation, subject, key, fingerprint: bodyFingerprint(body) };
}

function faultless(schema: object, value: unknown): Fault[] | null {
  const found = faults(schema, value);
  return found.length > 0 ? found : null;
}

/** Without members that are undefined. */
function given<T extends object>(value: T): T {
  return Object.fromEntries(Object.entries(value).filter(([, one]) => one !== undefined)) as T;
}

/** A page with its defaults. A wrong limit or cursor is a mistake of the program. */
function asked<T extends AskedPage>(schema: object, page: T): T & { limit: number } {
  const value = given({ ...page });
  const [first] = faults(schema, value);
  if (first !== undefined) throw new TerminalError('invalid_request', `${first.path.slice(1)} ${first.message}`);
  return value as T & { limit: number };
}
