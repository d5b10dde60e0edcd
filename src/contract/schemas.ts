import Type, { type Static } from 'typebox';
import { ID_PATTERN } from '../base/ids.ts';
import { ACCOUNT_BOUNDS, EMAIL_PATTERN } from '../model/account.ts';
import { CHECKS } from '../model/finding.ts';
import type { LikedKind } from '../model/like.ts';
import { AMOUNT_MAX } from '../model/money.ts';
import { ORDER_STATUSES } from '../model/order.ts';
import { REJECT_REASONS, type RejectReason } from '../model/outcome.ts';
import { BOUNDS } from '../model/sale.ts';
import { type CommentOrder, SOCIAL_BOUNDS } from '../model/social.ts';
import {
  CODE_PATTERN,
  CONTENT_PATTERN,
  HTTPS_PATTERN,
  KEY_PATTERN,
  NAME_PATTERN,
  TEXT_PATTERN,
} from '../model/text.ts';
import { SeatName, SeatRows } from './seats.ts';

/**
 * The schemas of input and output. HTTP and the library validate with them; HTTP also serialises with them and generates
 * /openapi.json from them.
 */
const strict = { additionalProperties: false };

export const Id = Type.String({ description: 'A 64-bit number, as text', examples: ['253585859977150465'] });
/** An id in a request. It has no example, because the forms of /docs would be filled with an id that does not exist. */
export const GivenId = Type.String({ pattern: ID_PATTERN, description: 'A 64-bit number, as text' });
export const Time = Type.String({
  format: 'date-time',
  description: 'ISO 8601',
  examples: ['2026-11-11T00:00:00.000Z'],
});
const GIVEN_TIME = 'ISO 8601, in the years 0000 to 9999 (UTC) and without leap seconds';
const GivenTime = Type.String({ format: 'date-time', description: GIVEN_TIME });
const Name = Type.String({ minLength: 1, maxLength: BOUNDS.nameLengthMax, pattern: NAME_PATTERN });
export const Buyer = Type.String({ minLength: 1, maxLength: BOUNDS.buyerLengthMax, pattern: NAME_PATTERN });
/** A name that another system gave, for example to a payment. Stored and compared byte by byte, with outer blanks. */
const Reference = Type.String({
  minLength: 1,
  maxLength: 200,
  pattern: TEXT_PATTERN,
  'x-maxBytes': BOUNDS.textBytesMax,
});
/** The subject of an audit entry: never longer than a reference. */
export const Subject = Type.String({ maxLength: BOUNDS.textBytesMax / 4, pattern: TEXT_PATTERN });
export const Code = Type.String({ pattern: CODE_PATTERN, examples: ['voucher-100'] });

export function words<const T extends readonly string[]>(values: T) {
  return Type.Unsafe<T[number]>({ type: 'string', enum: [...values] });
}

/** `type: [string, null]`, not a union: the serialiser would run a validator for each branch of a union. */
export function nullable(of: Type.TString) {
  return Type.Unsafe<string | null>({ ...of, type: ['string', 'null'] });
}

export const Money = Type.Object(
  {
    amount: Type.Integer({ minimum: 0, maximum: AMOUNT_MAX, description: 'Minor units' }),
    currency: Type.String({ pattern: '^[A-Z]{3}$', examples: ['CNY'] }),
  },
  strict,
);

/** The amount of an order: up to a hundred units of the dearest item. */
const Total = Type.Object(
  {
    amount: Type.Integer({ minimum: 0, maximum: AMOUNT_MAX * BOUNDS.quantityMax, description: 'Minor units' }),
    currency: Type.String({ pattern: '^[A-Z]{3}$', examples: ['CNY'] }),
  },
  strict,
);

const Description = Type.String({
  minLength: 1,
  maxLength: BOUNDS.descriptionLengthMax,
  pattern: CONTENT_PATTERN,
  description: 'Plain text of several lines. It is stored and sent as it is: whoever shows it escapes it',
});
const Image = Type.String({
  format: 'uri',
  maxLength: BOUNDS.imageLengthMax,
  pattern: HTTPS_PATTERN,
  description: 'An https URL. Doorbuster never fetches it',
});
const Metadata = Type.Unsafe<Record<string, string>>({
  type: 'object',
  // The shortest is `"a":"",`. All that fits into the bytes is allowed: these bounds only say that there are some.
  maxProperties: Math.floor(BOUNDS.metadataBytesMax / 7),
  // Parsers of JSON treat this name in their own ways; ours refuses the whole body.
  propertyNames: {
    type: 'string',
    maxLength: BOUNDS.metadataNameLengthMax,
    pattern: NAME_PATTERN,
    not: { const: '__proto__' },
  },
  additionalProperties: { type: 'string', maxLength: BOUNDS.metadataBytesMax, pattern: TEXT_PATTERN },
  description: `Texts by name, at most ${BOUNDS.metadataBytesMax} bytes as JSON. Everybody who sees the sale sees them`,
});
const Venue = Type.String({ minLength: 1, maxLength: BOUNDS.venueLengthMax, pattern: NAME_PATTERN });
const STARTS_AT = 'When the event begins that the sale sells tickets for. No order depends on it';

/** What a sale and an item can say, in a request. */
const Described = {
  description: Type.Optional(Description),
  image: Type.Optional(Image),
  metadata: Type.Optional(Metadata),
};
const DescribedPatch = {
  description: Type.Optional(nullable(Description)),
  image: Type.Optional(nullable(Image)),
  metadata: Type.Optional(Type.Unsafe<Record<string, string> | null>({ ...Metadata, type: ['object', 'null'] })),
};
/** The same as it is shown: absent where nothing is said. */
const Shown = {
  description: Type.Optional(Type.String()),
  image: Type.Optional(Type.String()),
  metadata: Type.Optional(
    Type.Unsafe<Record<string, string>>({ type: 'object', additionalProperties: { type: 'string' } }),
  ),
};

const count = (description: string) => Type.Integer({ minimum: 0, description });

export const Item = Type.Object({
  code: Code,
  name: Type.String(),
  price: Money,
  kind: words(['counted', 'seated']),
  onSale: Type.Boolean({ description: 'False: orders for it get `sold_out`, however many are free' }),
  total: count('All units'),
  free: count('Can be ordered now'),
  queued: count('Admitted, not yet committed'),
  reserved: count('In reserved orders'),
  sold: count('In paid orders'),
  blocked: count('Held back by the shop'),
  ...Shown,
});

export const Sale = Type.Object({
  id: Id,
  name: Type.String(),
  state: words(['scheduled', 'open', 'sold_out', 'paused', 'closed']),
  opensAt: Time,
  closesAt: Time,
  perBuyer: Type.Integer(),
  payWithin: Type.Integer({ description: 'Seconds' }),
  version: Type.Integer(),
  createdAt: Time,
  startsAt: Type.Optional(Type.String({ ...Time, description: STARTS_AT })),
  venue: Type.Optional(Type.String()),
  ...Shown,
  items: Type.Array(Item),
});

export const NewItem = Type.Object(
  {
    code: Code,
    name: Name,
    price: Money,
    stock: Type.Optional(
      Type.Integer({ minimum: 0, maximum: BOUNDS.stockMax, description: 'Of a counted item, which has no `seats`' }),
    ),
    seats: Type.Optional(SeatRows),
    ...Described,
  },
  {
    ...strict,
    examples: [{ code: 'voucher-200', name: '200 off', price: { amount: 15000, currency: 'CNY' }, stock: 50 }],
  },
);

const PerBuyer = Type.Integer({ minimum: 1, maximum: BOUNDS.perBuyerMax, description: 'Units over the whole sale' });
const PayWithin = Type.Integer({ minimum: 1, maximum: BOUNDS.payWithinSecondsMax, description: 'Seconds' });

const Version = Type.Integer({
  minimum: 1,
  maximum: Number.MAX_SAFE_INTEGER,
  description: 'The version this change is based on',
});

export const NewSale = Type.Object(
  {
    name: Name,
    opensAt: GivenTime,
    closesAt: Type.String({ ...GivenTime, description: `${GIVEN_TIME}; after \`opensAt\`` }),
    perBuyer: Type.Optional(Type.Integer({ ...PerBuyer, default: BOUNDS.perBuyerDefault })),
    payWithin: Type.Optional(Type.Integer({ ...PayWithin, default: BOUNDS.payWithinSecondsDefault })),
    startsAt: Type.Optional(Type.String({ ...GivenTime, description: STARTS_AT })),
    venue: Type.Optional(Venue),
    ...Described,
    items: Type.Array(NewItem, {
      minItems: 1,
      maxItems: BOUNDS.itemsMax,
      description: 'Every item needs a different code',
    }),
  },
  {
    ...strict,
    examples: [
      {
        name: 'Double Eleven vouchers',
        // Open at any time, so that the example works in /docs.
        opensAt: '2026-01-01T00:00:00.000Z',
        closesAt: '2099-01-01T00:00:00.000Z',
        perBuyer: 1,
        payWithin: 900,
        items: [
          { code: 'voucher-100', name: '100 off', price: { amount: 8000, currency: 'CNY' }, stock: 100 },
          {
            code: 'stalls',
            name: 'Stalls',
            price: { amount: 68_000, currency: 'CNY' },
            seats: [{ section: 'Stalls', row: 'A', from: 1, to: 20 }],
          },
        ],
      },
    ],
  },
);

export const SalePatch = Type.Object(
  {
    name: Type.Optional(Name),
    opensAt: Type.Optional(GivenTime),
    closesAt: Type.Optional(GivenTime),
    perBuyer: Type.Optional(PerBuyer),
    payWithin: Type.Optional(PayWithin),
    startsAt: Type.Optional(nullable(Type.String({ ...GivenTime, description: STARTS_AT }))),
    venue: Type.Optional(nullable(Venue)),
    ...DescribedPatch,
    version: Version,
  },
  { ...strict, examples: [{ perBuyer: 2, version: 1 }], description: 'Null takes a text away' },
);

export const ItemPatch = Type.Object(
  {
    name: Type.Optional(Name),
    price: Type.Optional(Money),
    onSale: Type.Optional(Type.Boolean()),
    ...DescribedPatch,
    version: Type.Integer({ ...Version, description: 'The version of the sale that this change is based on' }),
  },
  {
    ...strict,
    examples: [{ price: { amount: 7000, currency: 'CNY' }, version: 1 }],
    description: 'Null takes a text away',
  },
);

export const StockChange = Type.Object(
  {
    add: Type.Integer({
      minimum: -BOUNDS.stockMax,
      maximum: BOUNDS.stockMax,
      description: `Negative: removes units, at most those that are free. The total may be up to ${BOUNDS.stockMax}`,
    }),
  },
  { ...strict, examples: [{ add: 10 }] },
);

export const Nothing = Type.Object({}, strict);

type MoneyOf = Static<typeof Money>;

const Payment = Type.Object({
  state: words(['none', 'pending', 'captured', 'failed', 'refunding', 'refunded'] as const),
  provider: Type.String(),
  reference: nullable(Type.String()),
  refunded: Type.Unsafe<MoneyOf | null>({
    ...Type.Object({ amount: Type.Integer({ minimum: 0, description: 'Minor units' }), currency: Type.String() }),
    type: ['object', 'null'],
    description: 'The amount that was refunded; null: nothing',
  }),
});

export const Order = Type.Object({
  id: Id,
  saleId: Id,
  buyer: Type.String(),
  item: Type.String(),
  quantity: Type.Integer(),
  seats: Type.Array(Type.String(), { description: 'Names, as `Stalls/A/12`; of a counted item: none' }),
  amount: Type.Object({ amount: Type.Integer({ minimum: 0, description: 'Minor units' }), currency: Type.String() }),
  status: words(ORDER_STATUSES),
  reason: Type.Unsafe<RejectReason | null>({ type: ['string', 'null'], enum: [...REJECT_REASONS, null] }),
  payment: Type.Unsafe<Static<typeof Payment> | null>({ ...Payment, type: ['object', 'null'] }),
  expiresAt: nullable(Time),
  createdAt: Time,
  updatedAt: Time,
  version: Type.Integer(),
  revives: Type.Optional(Id),
});

/** The result of a payment: the order, and where to send the buyer if the provider needs more from them. */
export const PendingOrder = Type.Object({ ...Order.properties, redirectUrl: Type.Optional(Type.String()) });

export const PayOrder = Type.Object(
  {
    method: Type.String({
      minLength: 1,
      maxLength: 32,
      description: 'The payment provider: `sandbox`, or one of the shop’s',
    }),
    token: Type.Optional(
      Type.String({ maxLength: 1024, description: 'The provider’s token for the buyer’s means of payment' }),
    ),
  },
  { ...strict, examples: [{ method: 'sandbox' }] },
);

export const ConfirmOrder = Type.Object(
  {
    reference: Type.String({
      ...Reference,
      description: `The shop’s own reference of this payment; at most ${BOUNDS.textBytesMax} bytes of UTF-8`,
    }),
    amount: Total,
  },
  { ...strict, examples: [{ reference: 'checkout-4711', amount: { amount: 8000, currency: 'CNY' } }] },
);

export const RefundOrder = Type.Object(
  {
    amount: Type.Optional(
      Type.Object(
        { ...Total.properties, amount: Type.Integer({ ...Total.properties.amount, minimum: 1 }) },
        {
          ...strict,
          description: 'Refunds this part, and the order stays paid. Without it, all that is left is refunded',
        },
      ),
    ),
  },
  { ...strict, examples: [{ amount: { amount: 500, currency: 'CNY' } }] },
);

export const PaymentNews = Type.Object(
  {
    id: Reference,
    type: words(['payment.captured', 'payment.failed', 'payment.refunded'] as const),
    orderId: Type.String({ maxLength: 200, description: 'An unknown id is answered 200 and logged as an error' }),
    reference: Reference,
    amount: Total,
  },
  {
    ...strict,
    examples: [
      {
        id: 'event-1',
        type: 'payment.captured',
        orderId: '253585859977150465',
        reference: 'payment-1',
        amount: { amount: 8000, currency: 'CNY' },
      },
    ],
  },
);

export const AuditEntry = Type.Object({
  id: Id,
  at: Time,
  actor: Type.String({
    description: '`admin:<name>`, `buyer:<id>`, `provider:<name>`, `library:app` or `system:<part>`',
    examples: ['admin:alice'],
  }),
  origin: nullable(Type.String({ description: 'The client’s address; null: a process of the shop itself' })),
  action: Type.String(),
  subject: Type.String(),
  detail: Type.Unknown(),
});

export const Finding = Type.Object({
  id: Type.String({ description: 'Stays the same each time the same problem is found' }),
  check: words(CHECKS),
  saleId: Type.Optional(Id),
  subject: Type.String({ description: '`order:<id>`, `post:<id>` or `comment:<id>`' }),
  expected: Type.String(),
  actual: Type.String(),
  cause: Type.String(),
  repair: Type.String({ description: 'What to do about it' }),
});

export const CheckReport = Type.Object({
  checkedAt: Time,
  status: words(['consistent', 'inconsistent']),
  checks: Type.Array(words(CHECKS), { description: 'The checks that were run' }),
  findings: Type.Array(Finding, { description: 'At most 1 000; `more` says whether there are others' }),
  more: Type.Boolean(),
  next: nullable(
    Type.String({ description: '`from` of the next check, which goes on with the counts; null: all were checked' }),
  ),
});

export const CheckBody = Type.Object(
  {
    saleId: Type.Optional(GivenId),
    from: Type.Optional(
      Type.String({
        pattern: `^(post|comment):(0|${ID_PATTERN.slice(1, -1)})$`,
        description: '`next` of a report: checks the rest of the counts',
        examples: ['post:253593827141520501'],
      }),
    ),
  },
  { ...strict, examples: [{}] },
);

export type PayOrderBody = Static<typeof PayOrder>;
export type RefundOrderBody = Static<typeof RefundOrder>;
export type ConfirmOrderBody = Static<typeof ConfirmOrder>;
export type PaymentNewsBody = Static<typeof PaymentNews>;

export const NewOrder = Type.Object(
  {
    item: Type.Optional(Type.String({ ...Code, description: 'Needed unless `seats` are named' })),
    quantity: Type.Optional(
      Type.Integer({ minimum: 1, maximum: BOUNDS.quantityMax, description: '1, or the number of `seats`' }),
    ),
    seats: Type.Optional(
      Type.Array(SeatName, {
        minItems: 1,
        maxItems: BOUNDS.quantityMax,
        description: 'These very seats of one item, all or none',
      }),
    ),
    together: Type.Optional(
      Type.Boolean({ description: 'Of a seated item: the best free seats that are all neighbours. Not with `seats`' }),
    ),
  },
  { ...strict, minProperties: 1, examples: [{ item: 'voucher-100', quantity: 1 }] },
);

export type NewSaleBody = Static<typeof NewSale>;
export type SalePatchBody = Static<typeof SalePatch>;
export type NewItemBody = Static<typeof NewItem>;
export type ItemPatchBody = Static<typeof ItemPatch>;
export type StockChangeBody = Static<typeof StockChange>;
export type NewOrderBody = Static<typeof NewOrder>;

const BYTEWISE = 'Compared bytewise: `Ann` is not `ann`';
const Username = Type.String({
  minLength: 1,
  maxLength: ACCOUNT_BOUNDS.usernameMax,
  pattern: NAME_PATTERN,
  description: BYTEWISE,
});
const Password = Type.String({ minLength: 1, maxLength: ACCOUNT_BOUNDS.passwordMax, pattern: TEXT_PATTERN });

export const NewAccount = Type.Object(
  {
    username: Type.String({
      ...Username,
      description: `${BYTEWISE}. In Unicode form NFKC, without invisible characters`,
    }),
    email: Type.String({
      minLength: 3,
      maxLength: ACCOUNT_BOUNDS.emailMax,
      pattern: EMAIL_PATTERN,
      description: 'Compared bytewise, but for the case of its domain',
    }),
    password: Type.String({
      ...Password,
      minLength: ACCOUNT_BOUNDS.passwordMin,
      description: 'Not a common one, nor the username or the e-mail address. Hashed in Unicode form NFKC',
    }),
  },
  { ...strict, examples: [{ username: 'ann', email: 'ann@example.com', password: 'nine purple teapots' }] },
);

export const NewSession = Type.Object(
  { username: Username, password: Password },
  { ...strict, examples: [{ username: 'ann', password: 'nine purple teapots' }] },
);

export const SignedIn = Type.Object({
  account: Type.Object({
    id: Id,
    subject: Type.String({
      description: '`account:<id>`: the buyer of its orders',
      examples: ['account:253585859977150465'],
    }),
    username: Type.String(),
    email: Type.String(),
    createdAt: Time,
  }),
  token: Type.String({ description: 'A buyer’s token, valid for 24 hours' }),
});

export type NewAccountBody = Static<typeof NewAccount>;
export type NewSessionBody = Static<typeof NewSession>;

/** A title is one line. */
const Title = Type.String({ minLength: 1, maxLength: SOCIAL_BOUNDS.titleMax, pattern: NAME_PATTERN });
const content = (lengthMax: number) =>
  Type.String({
    minLength: 1,
    maxLength: lengthMax,
    pattern: CONTENT_PATTERN,
    description: 'Plain text of several lines. It is stored and sent as it is: whoever shows it escapes it',
  });
const PostContent = content(SOCIAL_BOUNDS.contentMax);
const CommentContent = content(SOCIAL_BOUNDS.commentMax);

export const NewPost = Type.Object(
  { title: Title, content: PostContent },
  { ...strict, examples: [{ title: 'Is it worth the queue?', content: 'I got one of the vouchers.' }] },
);

export const PostPatch = Type.Object(
  { title: Type.Optional(Title), content: Type.Optional(PostContent), version: Version },
  { ...strict, examples: [{ title: 'It is worth the queue', version: 1 }] },
);

export const NewComment = Type.Object(
  {
    content: CommentContent,
    parentId: Type.Optional(
      Type.String({ pattern: ID_PATTERN, description: 'The comment of this post that it replies to' }),
    ),
  },
  { ...strict, examples: [{ content: 'I was too late.' }] },
);

export const CommentPatch = Type.Object(
  { content: CommentContent, version: Version },
  { ...strict, examples: [{ content: 'I was in time.', version: 1 }] },
);

export type NewPostBody = Static<typeof NewPost>;
export type PostPatchBody = Static<typeof PostPatch>;
export type NewCommentBody = Static<typeof NewComment>;
export type CommentPatchBody = Static<typeof CommentPatch>;

const Person = Type.Object({
  id: Type.String({ description: 'The buyer whom the token named' }),
  name: nullable(Type.String({ description: 'The username; null: not an account that registered here' })),
});

const LikeCount = Type.Object({
  count: Type.Integer({ minimum: 0 }),
  exact: Type.Boolean({
    description: 'True: the count of the stored likes. False: some are on their way to the ledger',
  }),
  asOf: Type.String({ ...Time, description: 'When the ledger had what the count is based on' }),
});

const OfReader = Type.Optional(Type.Boolean({ description: 'Whether the caller likes it; only with a buyer’s token' }));

export const Post = Type.Object({
  id: Id,
  author: Person,
  title: Type.String(),
  content: Type.String(),
  likes: LikeCount,
  comments: count('Comments and replies that are not deleted'),
  liked: OfReader,
  version: Type.Integer(),
  createdAt: Time,
  updatedAt: Time,
});

export const Comment = Type.Object({
  id: Id,
  postId: Id,
  parentId: nullable(Type.String({ description: 'The comment that it is a reply to; null: it is about the post' })),
  answers: nullable(Type.String({ description: 'The reply that it answers, under the same comment' })),
  author: Type.Unsafe<Static<typeof Person> | null>({
    ...Person,
    type: ['object', 'null'],
    description: 'Null: it is deleted',
  }),
  content: nullable(Type.String({ description: 'Null: it is deleted' })),
  deleted: Type.Boolean({ description: 'A deleted comment that has replies keeps its place' }),
  likes: LikeCount,
  replies: count('Replies that are not deleted'),
  liked: OfReader,
  version: Type.Integer(),
  createdAt: Time,
  updatedAt: Time,
});

export const Deleted = Type.Object({ id: Id, deleted: Type.Literal(true) });

export const LikeAnswer = Type.Object({
  liked: Type.Boolean(),
  changed: Type.Boolean({ description: 'Whether this call changed it' }),
  likes: LikeCount,
});

export const Liker = Type.Object({ user: Person, at: Time });
export const LikedSubject = Type.Object({ kind: words(['post', 'comment']), id: Id, at: Time });

export function listOf<T extends Type.TSchema>(of: T) {
  return Type.Object({ data: Type.Array(of), nextCursor: nullable(Type.String()) });
}

/** Rows of a page. */
export const LIMIT_DEFAULT = 50;
export const LIMIT_MAX = 200;

export const PageQuery = {
  limit: Type.Optional(Type.Integer({ minimum: 1, maximum: LIMIT_MAX, default: LIMIT_DEFAULT })),
  cursor: Type.Optional(Type.String({ pattern: ID_PATTERN, description: '`nextCursor` of the page before' })),
};

export interface AskedPage {
  /** The schema fills in the default. */
  limit: number;
  cursor?: string;
}

export const SalesQuery = Type.Object(PageQuery, strict);

export const OrdersQuery = Type.Object(
  {
    ...PageQuery,
    saleId: Type.Optional(GivenId),
    status: Type.Optional(words(ORDER_STATUSES)),
    buyer: Type.Optional(Buyer),
  },
  strict,
);

const nextCursor = (pattern: string, lengthMax?: number) =>
  Type.Optional(
    Type.String({
      pattern,
      ...(lengthMax !== undefined && { maxLength: lengthMax }),
      description: '`nextCursor` of the page before',
    }),
  );
const BARE_ID = ID_PATTERN.slice(1, -1);
const TIMED = '^(0|[1-9][0-9]{0,14})\\.';

export const PostsQuery = Type.Object({ ...PageQuery, author: Type.Optional(Buyer) }, strict);

/** The cursor has the settled likes of the last comment, and its id: `newest` needs only the id. */
export const CommentsQuery = Type.Object(
  {
    limit: PageQuery.limit,
    cursor: nextCursor(`^(0|[1-9][0-9]{0,8})\\.${BARE_ID}$`),
    parentId: Type.Optional(Type.String({ pattern: ID_PATTERN, description: 'Its replies; without it, the comments' })),
    sort: Type.Optional(
      Type.Unsafe<CommentOrder>({
        type: 'string',
        enum: ['newest', 'liked'],
        default: 'newest',
        description: '`liked`: by stored likes, the most first',
      }),
    ),
  },
  strict,
);

/** The cursors of likes have the time of the last row, and its user or its subject. */
export const LikersQuery = Type.Object(
  { limit: PageQuery.limit, cursor: nextCursor(TIMED + NAME_PATTERN.slice(1), BOUNDS.buyerLengthMax + 16) },
  strict,
);

export const MyLikesQuery = Type.Object(
  {
    limit: PageQuery.limit,
    cursor: nextCursor(`${TIMED}${BARE_ID}$`),
    kind: Type.Optional(Type.Unsafe<LikedKind>({ type: 'string', enum: ['post', 'comment'], default: 'post' })),
  },
  strict,
);

export const OfId = Type.Object({ id: GivenId });

const IDEMPOTENCY_KEY = '1 to 255 printable ASCII characters. A repeat with the same key has no second effect';

/** For /openapi.json only: headers are validated where they are used (http/request.ts, http/auth.ts). */
export const KeyHeader = {
  'idempotency-key': Type.Optional(
    Type.String({ minLength: 1, maxLength: 255, pattern: KEY_PATTERN, description: IDEMPOTENCY_KEY }),
  ),
};
export const KeyHeaders = Type.Object(KeyHeader);

/** Its example fills the forms of /docs, so that a buyer's call also works there with an admin key. */
export const BuyerHeader = {
  'doorbuster-buyer': Type.Optional(
    Type.String({ ...Buyer, description: 'With an admin key: the buyer to act for (UTF-8)', examples: ['alice'] }),
  ),
};

export const NoQuery = Type.Object({}, { ...strict, description: 'None' });
