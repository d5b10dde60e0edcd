import { idTimeMs, isId } from '../base/ids.ts';
import type { LikeEvent } from '../model/like.ts';
import { isReadable, letterName, letterTimeMs } from '../model/like-letter.ts';
import type { OrderMessage } from '../model/order.ts';
import type { DeadLetter, DeadLetters } from '../pipe/port.ts';
import { iso } from './present.ts';

interface Letter {
  id: string;
  /** Empty: nobody can read it. */
  buyer: string;
  /** Why the ledger could not store it at the last attempt. */
  error: string;
  attempts: number;
  diedAt: string;
}

export interface OrderLetter extends Letter {
  kind: 'order';
  /** Null: it belongs to no sale, since it is not ours. */
  saleId: string | null;
  item: string;
  quantity: number;
}

export interface LikeLetter extends Letter {
  kind: 'like';
  /** `post:<id>` or `comment:<id>`; null: nobody can read it. */
  subject: string | null;
  /** False: it is taken back. */
  liked: boolean;
}

/** Divides the two parts of a cursor: no id of an order's letter contains it. The pipe's id of a like's letter contains a name. */
const AND = '~';
const written = (id: string): string => Buffer.from(id).toString('base64url');
const read = (text: string): string => Buffer.from(text, 'base64url').toString();

/**
 * The dead letters of orders and of likes as one list, newest first by the time in their ids; those that nobody can read have none and
 * come last. A cursor says where each of the two lists goes on.
 */
export class DeadLetterList {
  readonly #orders: DeadLetters<OrderMessage> | null;
  readonly #likes: DeadLetters<LikeEvent> | null;

  /** Null: there can be none. */
  constructor(orders: DeadLetters<OrderMessage> | null, likes: DeadLetters<LikeEvent> | null) {
    this.#orders = orders;
    this.#likes = likes;
  }

  async page(
    limit: number,
    cursor: string | null,
  ): Promise<{ data: (OrderLetter | LikeLetter)[]; nextCursor: string | null }> {
    const [order, like] = (cursor ?? '').split(AND);
    let beforeOrder = order || null;
    let beforeLike = like ? read(like) : null;
    // One more, to know whether there is another page.
    const [orders, likes] = await Promise.all([
      this.#orders?.list(limit + 1, beforeOrder) ?? [],
      this.#likes?.list(limit + 1, beforeLike) ?? [],
    ]);
    const data: (OrderLetter | LikeLetter)[] = [];
    for (let [at, to] = [0, 0]; data.length < limit; ) {
      const [one, other] = [orders[at], likes[to]];
      if (one !== undefined && (other === undefined || timeOfOrder(one.id) >= (letterTimeMs(other.id) ?? NEVER))) {
        data.push(presentOrderLetter(one));
        beforeOrder = one.id;
        at++;
      } else if (other !== undefined) {
        data.push(presentLikeLetter(other));
        beforeLike = other.id;
        to++;
      } else break;
    }
    const isMore = orders.length + likes.length > data.length;
    const next = beforeLike === null ? beforeOrder : `${beforeOrder ?? ''}${AND}${written(beforeLike)}`;
    return { data, nextCursor: isMore ? next : null };
  }
}

const NEVER = Number.NEGATIVE_INFINITY;

function timeOfOrder(id: string): number {
  return isId(id) ? idTimeMs(id) : NEVER;
}

function presentOrderLetter({ message, error, attempts, diedAtMs }: DeadLetter<OrderMessage>): OrderLetter {
  const { orderId: id, saleId, buyer, itemCode: item, quantity } = message;
  return { kind: 'order', id, buyer, saleId: saleId || null, item, quantity, error, attempts, diedAt: iso(diedAtMs) };
}

function presentLikeLetter({
  id: its,
  channel,
  message,
  error,
  attempts,
  diedAtMs,
}: DeadLetter<LikeEvent>): LikeLetter {
  const id = letterName(its, channel);
  const { user: buyer, liked } = message;
  const subject = isReadable(message) ? message.subject : null;
  return { kind: 'like', id, buyer, subject, liked, error, attempts, diedAt: iso(diedAtMs) };
}
