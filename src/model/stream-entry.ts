import { ACTOR_KINDS, type ActorKind } from './actor.ts';
import { saleOf } from './channel.ts';
import type { EntryCodec, EntryFields } from './entry.ts';
import { ENTRY } from './formats.ts';
import type { OrderMessage, PlacedBy } from './order.ts';

/**
 * How a batch of admitted orders stands in a stream: one entry, whose fields the gate's script writes and the pipe reads
 * (docs/internals/distributed.md). Names hold no control characters, so that a line feed separates.
 *
 *   ''          epoch, payWithin, process. The name of this first field is the entry's format: '' stands for 1
 *   i<number>   item id, item code, amount, currency
 *   o<count>    item number, slots with dots, fingerprint; the ids of the orders that have these, with blanks; their buyers.
 *               In format 2, between ids and buyers: the seats of each order with dots, blanks between the orders
 *   k<count>    the same with keys, after each buyer: key (nothing: none)
 *   by          whoever placed some of them for their buyers, as JSON: [order id, audit id, kind, name, origin] of each. It
 *               comes last, and may name orders that were not admitted
 *
 * Orders of seats have format 2, which begins with the field '2'; all others have format 1. An entry has orders of one kind.
 */
const COUNTED = '';
const SEATED = '2';

/** Orders that are alike, as they stand in one field. */
interface Group {
  readonly common: readonly string[];
  readonly orders: readonly Pick<OrderMessage, 'orderId' | 'buyer' | 'key' | 'seats'>[];
}

const COMMON = 3;
const ORDER_ID = /^\d{1,20}$/;
const SEATS = /^\d{1,6}(\.\d{1,6})*$/;
const GROUP = /^([ok])(\d{1,6})$/;

/** Null: not a field of orders. Throws if it is one and cannot be read. */
function groupIn(field: string, value: string, seated: boolean): Group | null {
  const [, kind, count] = GROUP.exec(field) ?? [];
  if (kind === undefined) return null;
  const lines = value.split('\n');
  const ids = lines[COMMON]?.split(' ') ?? [];
  const each = kind === 'k' ? 2 : 1;
  const namesAt = COMMON + (seated ? 2 : 1);
  if (ids.length !== Number(count) || lines.length !== namesAt + each * ids.length) {
    throw new Error(`a field of ${count} orders has ${ids.length} ids and ${lines.length} parts`);
  }
  const odd = ids.find((id) => !ORDER_ID.test(id));
  if (odd !== undefined) throw new Error(`${JSON.stringify(odd)} is no order id`);
  const seats = seated ? lines[COMMON + 1]!.split(' ') : null;
  if (seats !== null && (seats.length !== ids.length || !seats.every((one) => SEATS.test(one)))) {
    throw new Error(`a field of ${count} orders has the seats ${JSON.stringify(seats.join(' '))}`);
  }
  const orders = ids.map((orderId, at) => {
    const nameAt = namesAt + at * each;
    const order = { orderId, buyer: lines[nameAt]!, key: (kind === 'k' && lines[nameAt + 1]) || null };
    return seats === null ? order : { ...order, seats: seats[at]!.split('.').map(Number) };
  });
  return { common: lines.slice(0, COMMON), orders };
}

const BY = 'by';

/** The value of the field `by`; orders that their buyers placed are not in it. */
export function encodePlacedBy(
  orders: Iterable<{ readonly orderId: string; readonly placedBy?: PlacedBy | undefined }>,
): string {
  const placed: (string | null)[][] = [];
  for (const { orderId, placedBy } of orders) {
    if (placedBy === undefined) continue;
    const { auditId, kind, name, origin } = placedBy;
    placed.push([orderId, auditId, kind, name, origin]);
  }
  return JSON.stringify(placed);
}

/** Throws if this is not such a value. */
function placedByIn(value: string): Map<string, PlacedBy> {
  const placed = new Map<string, PlacedBy>();
  for (const [orderId, auditId, kind, name, origin] of JSON.parse(value) as (string | null)[][]) {
    const isRight =
      ORDER_ID.test(String(orderId)) &&
      ORDER_ID.test(String(auditId)) &&
      ACTOR_KINDS.includes(kind as ActorKind) &&
      typeof name === 'string' &&
      (origin === null || typeof origin === 'string');
    if (!isRight) throw new Error(`nobody can have placed order ${JSON.stringify(orderId)} like this`);
    placed.set(orderId!, { auditId: auditId!, kind: kind as ActorKind, name, origin });
  }
  return placed;
}

const NOBODY: ReadonlyMap<string, PlacedBy> = new Map();

function placedByOf(fields: EntryFields): ReadonlyMap<string, PlacedBy> {
  return fields.at(-2) === BY ? placedByIn(fields.at(-1)!) : NOBODY;
}

export function encodeEntry(message: OrderMessage): string[] {
  const { orderId, itemId, itemCode, buyer, slots, price, payWithinSeconds, epoch, key, fingerprint, from } = message;
  const order = { orderId, buyer, key, ...(message.seats && { seats: message.seats }) };
  return [
    message.seats === undefined ? COUNTED : SEATED,
    [epoch, payWithinSeconds, from ?? ''].join('\n'),
    'i1',
    [itemId, itemCode, price.amount, price.currency].join('\n'),
    ...encodeGroup({ common: ['1', slots.join('.'), fingerprint], orders: [order] }),
    ...(message.placedBy === undefined ? [] : [BY, encodePlacedBy([message])]),
  ];
}

function encodeGroup({ common, orders }: Group): [field: string, value: string] {
  const keyed = orders.some(({ key }) => key !== null);
  const ids = orders.map(({ orderId }) => orderId).join(' ');
  const names = orders.flatMap(({ buyer, key }) => (keyed ? [buyer, key ?? ''] : [buyer]));
  const seated = orders[0]!.seats !== undefined;
  const seats = seated ? [orders.map((order) => order.seats!.join('.')).join(' ')] : [];
  return [`${keyed ? 'k' : 'o'}${orders.length}`, [...common, ids, ...seats, ...names].join('\n')];
}

/** Throws if no gate can have written this. */
export function decodeEntry(saleId: string, fields: EntryFields): OrderMessage[] {
  if (fields[0] !== COUNTED && fields[0] !== SEATED) throw new Error('an entry of the stream has no header');
  const seated = fields[0] === SEATED;
  const [epoch, payWithin, from] = partsOf(fields[1]!, 3);
  const placedBy = placedByOf(fields);
  const items = new Map<string, Pick<OrderMessage, 'itemId' | 'itemCode' | 'price'>>();
  const messages: OrderMessage[] = [];
  const end = placedBy === NOBODY ? fields.length : fields.length - 2;
  for (let at = 2; at < end; at += 2) {
    const field = fields[at]!;
    const value = fields[at + 1]!;
    const group = groupIn(field, value, seated);
    if (group === null) {
      if (!field.startsWith('i')) throw new Error(`an entry of the stream has a field ${JSON.stringify(field)}`);
      const [itemId, itemCode, amount, currency] = partsOf(value, 4);
      items.set(field.slice(1), { itemId, itemCode, price: { amount: Number(amount), currency } });
      continue;
    }
    const [number, slots, fingerprint] = group.common as [string, string, string];
    const item = items.get(number);
    const taken = slots.split('.').map(Number);
    for (const { orderId, buyer, key, seats } of group.orders) {
      if (seats !== undefined && seats.length !== taken.length) {
        throw new Error(`order ${orderId} has ${taken.length} slots and ${seats.length} seats`);
      }
      if (item === undefined) throw new Error(`order ${orderId} is of item ${number}, which its entry does not have`);
      const by = placedBy.get(orderId);
      messages.push({
        orderId,
        saleId,
        ...item,
        buyer,
        quantity: taken.length,
        slots: taken,
        ...(seats === undefined ? {} : { seats }),
        payWithinSeconds: Number(payWithin),
        epoch: Number(epoch),
        key,
        fingerprint,
        ...(from === '' ? {} : { from }),
        ...(by === undefined ? {} : { placedBy: by }),
      });
    }
  }
  return messages;
}

/** Splits an entry into one per order. `rest`: the fields that could not be split; null if there are none. */
export function splitEntry(fields: EntryFields): ReturnType<EntryCodec<OrderMessage>['split']> {
  const common: string[] = [];
  const strange: string[] = [];
  const groups: Group[] = [];
  let placedBy = NOBODY;
  for (let at = 0; at < fields.length; at += 2) {
    const pair = [fields[at]!, fields[at + 1] ?? ''] as const;
    try {
      const group = groupIn(...pair, fields[0] === SEATED);
      if (group) groups.push(group);
      else if (pair[0] === COUNTED || pair[0].startsWith('i') || (at === 0 && pair[0] === SEATED)) common.push(...pair);
      else if (pair[0] === BY) placedBy = placedByIn(pair[1]);
      else strange.push(...pair);
    } catch {
      strange.push(...pair);
    }
  }
  const messages = groups.flatMap((group) =>
    group.orders.map((order) => {
      const by = placedBy.get(order.orderId);
      return {
        id: order.orderId,
        fields: [
          ...common,
          ...encodeGroup({ common: group.common, orders: [order] }),
          ...(by === undefined ? [] : [BY, encodePlacedBy([{ orderId: order.orderId, placedBy: by }])]),
        ],
      };
    }),
  );
  const isAll = strange.length === 0 && messages.length > 0;
  return { messages, rest: isAll ? null : [...common, ...strange] };
}

export const ORDER_ENTRIES: EntryCodec<OrderMessage> = {
  format: ENTRY,
  decode: (channel, fields) => decodeEntry(saleOf(channel)!, fields),
  encode: encodeEntry,
  split: splitEntry,
  idOf: ({ orderId }) => orderId,
  // It orders nothing: whoever handles a letter sees by it that there is no order.
  unreadable: (channel, id, epoch, raw) => ({
    orderId: id,
    saleId: channel === null ? '' : saleOf(channel)!,
    itemId: '',
    itemCode: '',
    buyer: '',
    quantity: 0,
    slots: [],
    price: { amount: 0, currency: '' },
    payWithinSeconds: 0,
    epoch,
    key: null,
    fingerprint: raw,
  }),
};

function partsOf(value: string, count: 3): [string, string, string];
function partsOf(value: string, count: 4): [string, string, string, string];
function partsOf(value: string, count: number): string[] {
  const parts = value.split('\n');
  if (parts.length !== count) throw new Error(`an entry of the stream has ${parts.length} parts instead of ${count}`);
  return parts;
}
