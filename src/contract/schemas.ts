import Type, { type Static } from 'typebox';
import { CHECKS } from '../model/finding.ts';
import { AMOUNT_MAX } from '../model/money.ts';
import { ORDER_STATUSES } from '../model/order.ts';
import { REJECT_REASONS, type RejectReason } from '../model/outcome.ts';
import { BOUNDS } from '../model/sale.ts';
import { CODE_PATTERN } from '../model/text.ts';

/**
 * What goes in and out, to HTTP and to the library alike. Both validate with these; HTTP also serialises with them, and
 * /openapi.json is made of them.
 */
const strict = { additionalProperties: false };

export const Id = Type.String({ description: 'A 64-bit number, as text', examples: ['253585859977150465'] });
export const Time = Type.String({
  format: 'date-time',
  description: 'ISO 8601',
  examples: ['2026-11-11T00:00:00.000Z'],
});
const Name = Type.String({ minLength: 1, maxLength: BOUNDS.nameLengthMax, format: 'name' });
/** What somebody else calls something: a payment, a piece of news. Kept and compared as it is, also with blanks around it. */
const Reference = Type.String({ minLength: 1, maxLength: 200, format: 'reference' });
const Code = Type.String({ pattern: CODE_PATTERN, examples: ['voucher-100'] });

function words<const T extends readonly string[]>(values: T) {
  return Type.Unsafe<T[number]>({ type: 'string', enum: [...values] });
}

/** `type: [string, null]` and not a union: the serialiser would try each branch of a union with a validator. */
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

/** Of an order: up to a hundred units of the dearest item. */
const Total = Type.Object(
  {
    amount: Type.Integer({ minimum: 0, maximum: AMOUNT_MAX * BOUNDS.quantityMax, description: 'Minor units' }),
    currency: Type.String({ pattern: '^[A-Z]{3}$', examples: ['CNY'] }),
  },
  strict,
);

const count = (description: string) => Type.Integer({ minimum: 0, description });

export const Item = Type.Object({
  code: Code,
  name: Type.String(),
  price: Money,
  kind: words(['counted', 'seated']),
  total: count('All units'),
  free: count('Can be ordered now'),
  queued: count('Admitted, not yet committed'),
  reserved: count('In reserved orders'),
  sold: count('In paid orders'),
  blocked: count('Held back by the shop'),
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
  items: Type.Array(Item),
});

export const NewItem = Type.Object(
  {
    code: Code,
    name: Name,
    price: Money,
    stock: Type.Integer({ minimum: 0, maximum: BOUNDS.stockMax }),
  },
  strict,
);

const PerBuyer = Type.Integer({ minimum: 1, maximum: BOUNDS.perBuyerMax, description: 'Units over the whole sale' });
const PayWithin = Type.Integer({ minimum: 1, maximum: BOUNDS.payWithinSecondsMax, description: 'Seconds' });

export const NewSale = Type.Object(
  {
    name: Name,
    opensAt: Time,
    closesAt: Time,
    perBuyer: Type.Optional(Type.Integer({ ...PerBuyer, default: BOUNDS.perBuyerDefault })),
    payWithin: Type.Optional(Type.Integer({ ...PayWithin, default: BOUNDS.payWithinSecondsDefault })),
    items: Type.Array(NewItem, { minItems: 1, maxItems: BOUNDS.itemsMax }),
  },
  strict,
);

export const SalePatch = Type.Object(
  {
    name: Type.Optional(Name),
    opensAt: Type.Optional(Time),
    closesAt: Type.Optional(Time),
    perBuyer: Type.Optional(PerBuyer),
    payWithin: Type.Optional(PayWithin),
    version: Type.Integer({ minimum: 1, description: 'The version this change is based on' }),
  },
  strict,
);

export const StockChange = Type.Object(
  {
    add: Type.Integer({
      minimum: -BOUNDS.stockMax,
      maximum: BOUNDS.stockMax,
      description: 'May be negative, down to what is free',
    }),
  },
  strict,
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
    description: 'What has gone back to the buyer; null: nothing',
  }),
});

export const Order = Type.Object({
  id: Id,
  saleId: Id,
  buyer: Type.String(),
  item: Type.String(),
  quantity: Type.Integer(),
  seats: Type.Array(Type.String()),
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

/** What became of a payment: the order, and where the buyer has to go if there is something left to do. */
export const PendingOrder = Type.Object({ ...Order.properties, redirectUrl: Type.Optional(Type.String()) });

export const PayOrder = Type.Object(
  {
    method: Type.String({
      minLength: 1,
      maxLength: 32,
      description: 'The payment provider: `sandbox`, or one of the shop’s',
    }),
    token: Type.Optional(Type.String({ maxLength: 1024, description: 'What the provider gave to the buyer’s client' })),
  },
  strict,
);

export const ConfirmOrder = Type.Object(
  {
    reference: Type.String({ ...Reference, description: 'The shop’s own name for this payment' }),
    amount: Total,
  },
  strict,
);

export const RefundOrder = Type.Object(
  {
    amount: Type.Optional(
      Type.Object(
        { ...Total.properties, amount: Type.Integer({ ...Total.properties.amount, minimum: 1 }) },
        { ...strict, description: 'A part of the money: the order stays paid. Without it, all that is left goes back' },
      ),
    ),
  },
  strict,
);

export const PaymentNews = Type.Object(
  {
    id: Reference,
    type: words(['payment.captured', 'payment.failed', 'payment.refunded'] as const),
    orderId: Id,
    reference: Reference,
    amount: Total,
  },
  strict,
);

export const AuditEntry = Type.Object({
  id: Id,
  at: Time,
  actor: Type.String({
    description: '`admin:<name>`, `buyer:<id>`, `provider:<name>`, `library:app` or `system:<part>`',
    examples: ['admin:alice'],
  }),
  origin: nullable(Type.String({ description: 'The address it came from; null: from inside a process of the shop' })),
  action: Type.String(),
  subject: Type.String(),
  detail: Type.Unknown(),
});

export const Finding = Type.Object({
  id: Type.String({ description: 'The same for the same trouble, however often it is found' }),
  check: words(CHECKS),
  saleId: Id,
  subject: Type.String({ description: '`order:<id>`' }),
  expected: Type.String(),
  actual: Type.String(),
  cause: Type.String(),
  repair: Type.String({ description: 'What to do about it' }),
});

export const CheckReport = Type.Object({
  checkedAt: Time,
  status: words(['consistent', 'inconsistent']),
  checks: Type.Array(words(CHECKS), { description: 'What was looked at' }),
  findings: Type.Array(Finding, { description: 'At most 1 000; `more` says whether there are others' }),
  more: Type.Boolean(),
});

export const CheckBody = Type.Object({ saleId: Type.Optional(Id) }, strict);

export type PayOrderBody = Static<typeof PayOrder>;
export type RefundOrderBody = Static<typeof RefundOrder>;
export type ConfirmOrderBody = Static<typeof ConfirmOrder>;
export type PaymentNewsBody = Static<typeof PaymentNews>;

export const NewOrder = Type.Object(
  {
    item: Code,
    quantity: Type.Optional(Type.Integer({ minimum: 1, maximum: BOUNDS.quantityMax, default: 1 })),
  },
  strict,
);

export type NewSaleBody = Static<typeof NewSale>;
export type SalePatchBody = Static<typeof SalePatch>;
export type StockChangeBody = Static<typeof StockChange>;
export type NewOrderBody = Static<typeof NewOrder>;

export function listOf<T extends Type.TSchema>(of: T) {
  return Type.Object({ data: Type.Array(of), nextCursor: nullable(Type.String()) });
}

export const PageQuery = {
  limit: Type.Optional(Type.String({ pattern: '^[0-9]{1,9}$', description: 'At most 200; 50 if left out' })),
  cursor: Type.Optional(Type.String({ pattern: '^[0-9]{1,20}$', description: '`nextCursor` of the page before' })),
};

export const SalesQuery = Type.Object(PageQuery, strict);

export const OrdersQuery = Type.Object(
  {
    ...PageQuery,
    saleId: Type.Optional(Type.String({ pattern: '^[0-9]{1,20}$' })),
    status: Type.Optional(words(ORDER_STATUSES)),
    buyer: Type.Optional(Type.String({ minLength: 1, maxLength: BOUNDS.buyerLengthMax, format: 'name' })),
  },
  strict,
);

export const NoQuery = Type.Object({}, { ...strict, description: 'None' });
