import { pino } from 'pino';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { Point } from '../../src/orders/life/points.ts';
import type { ProviderNews } from '../../src/payments/port.ts';
import { BY, LifeWorld, PRICE } from '../support/life-world.ts';

/** Refunds of a part of the money, asked for and told, with the process dying between any two steps. */
let world: LifeWorld;

const open = (over: Partial<Parameters<typeof LifeWorld.open>[0]> = {}): Promise<LifeWorld> =>
  LifeWorld.open({ stock: 1, perBuyer: 1, payWithinSeconds: 60, ...over });

beforeEach(async () => {
  world = await open();
});

afterEach(() => world.close());

function yuan(amount: number) {
  return { amount, currency: 'CNY' };
}

async function paidOrder(method = 'bank'): Promise<{ orderId: string; attemptId: string }> {
  const request = { saleId: world.saleId, itemCode: 'voucher', buyer: 'a', quantity: 1, key: null };
  const placed = await world.until(world.shop.place(request));
  if (!placed.ok) throw new Error(placed.code);
  const orderId = placed.order.id;
  const work =
    method === 'confirm'
      ? world.shop.confirmOrder(orderId, 'till', PRICE, BY)
      : world.shop.payOrder(orderId, { method, token: 'captured' }, BY);
  expect(await world.until(work)).toMatchObject({ ok: true, state: 'paid' });
  return { orderId, attemptId: [...world.bank.book.keys()][0] ?? '' };
}

function refund(orderId: string, amount: number | null, madeWith: string | null = null) {
  return world.until(world.shop.refundOrder(orderId, BY, { amount: amount === null ? null : yuan(amount), madeWith }));
}

async function tell(...news: readonly ProviderNews[]): Promise<void> {
  for (const one of news) await world.until(world.shop.paymentNews(one));
}

const refundNews = (): ProviderNews[] => world.bank.news.filter(({ type }) => type === 'payment.refunded');
const shown = async (orderId: string) => {
  const { status, payment } = (await world.shop.getOrder(orderId))!;
  return [status, payment!.state, payment!.refunded?.amount ?? null];
};
const sold = () => world.rows('SELECT sold FROM items')[0]!.sold;
const backAtBank = (attemptId: string) => world.bank.book.get(attemptId)!.back;

describe('P6: a part of the money that the provider tells is back', () => {
  it('does not end the order; the next part adds up; told again and out of order nothing is counted twice', async () => {
    const { orderId, attemptId } = await paidOrder();
    world.bank.giveBack(attemptId, 500);
    await tell(...refundNews());
    expect([await shown(orderId), sold()]).toEqual([['paid', 'captured', 500], 1]);
    world.bank.giveBack(attemptId, 300);
    const [first, second] = refundNews();
    await tell(second!, first!, second!, { ...first!, id: 'told under another id' });
    expect([await shown(orderId), sold()]).toEqual([['paid', 'captured', 800], 1]);
    world.bank.giveBack(attemptId, 7200);
    await tell(...refundNews());
    expect([await shown(orderId), sold()]).toEqual([['refunded', 'refunded', 8000], 0]);
    await world.judgeSettled();
  });

  it('of a provider that cannot say what is back in all: by the id of the news', async () => {
    await world.close();
    world = await open({ parts: false });
    const { orderId, attemptId } = await paidOrder();
    world.bank.giveBack(attemptId, 500);
    world.bank.giveBack(attemptId, 500);
    const [first, second] = refundNews();
    await tell(second!, first!, first!, second!);
    expect([await shown(orderId), sold()]).toEqual([['paid', 'captured', 1000], 1]);
    expect(await refund(orderId, 100), 'and it refunds no parts').toMatchObject({
      ok: false,
      code: 'order_not_refundable',
    });
    expect(await refund(orderId, null)).toMatchObject({ ok: true, order: { status: 'refunded' } });
    await world.judgeSettled();
  });

  it('while the provider cannot be asked: it is not taken in, and told again it is', async () => {
    const { orderId, attemptId } = await paidOrder();
    world.bank.giveBack(attemptId, 500);
    world.bank.mood = 'down';
    await expect(tell(...refundNews())).rejects.toThrow('cannot say how much');
    expect(await shown(orderId)).toEqual(['paid', 'captured', null]);
    world.bank.mood = 'well';
    await tell(...refundNews());
    expect(await shown(orderId)).toEqual(['paid', 'captured', 500]);
  });

  it('before anybody has heard of the capture: the order is paid, less the part', async () => {
    const request = { saleId: world.saleId, itemCode: 'voucher', buyer: 'a', quantity: 1, key: null };
    const placed = await world.until(world.shop.place(request));
    const orderId = (placed as { order: { id: string } }).order.id;
    world.begin('pay', world.shop.payOrder(orderId, { method: 'bank', token: 'lost' }, BY));
    await world.quiet();
    const attemptId = [...world.bank.book.keys()][0]!;
    world.bank.giveBack(attemptId, 500);
    await tell(...refundNews());
    expect(await shown(orderId)).toEqual(['paid', 'captured', 500]);
    await world.settle();
    await world.judgeSettled();
  });

  it('that nobody tells, nor of the capture: asking finds both', async () => {
    const request = { saleId: world.saleId, itemCode: 'voucher', buyer: 'a', quantity: 1, key: null };
    const placed = await world.until(world.shop.place(request));
    const orderId = (placed as { order: { id: string } }).order.id;
    world.begin('pay', world.shop.payOrder(orderId, { method: 'bank', token: 'lost' }, BY));
    await world.quiet();
    world.bank.giveBack([...world.bank.book.keys()][0]!, 500);
    await world.settle({ tells: false });
    expect(await shown(orderId)).toEqual(['paid', 'captured', 500]);
    await world.judgeSettled();
  });
});

describe('P6: late money of which a part is back before anybody here has heard that it came', () => {
  /** Given up when the order's time was over; the bank took the money all the same, and gave 500 of it back. */
  async function lateLessPart(): Promise<string> {
    await world.close();
    world = await open({ stock: 2, liesOnVoid: () => true });
    const request = { saleId: world.saleId, itemCode: 'voucher', buyer: 'a', quantity: 1, key: null };
    const placed = await world.until(world.shop.place(request));
    const orderId = (placed as { order: { id: string } }).order.id;
    await world.until(world.shop.payOrder(orderId, { method: 'bank', token: 'pending' }, BY));
    await world.jump(60_000);
    await world.advance(4000);
    expect((await world.ledger.getOrder(orderId))!.status).toBe('expired');
    world.bank.giveBack([...world.bank.book.keys()][0]!, 500);
    return orderId;
  }
  const all = () => world.rows('SELECT status FROM orders').map(({ status }) => status);
  const told = (type: string) => world.bank.news.filter((one) => one.type === type);

  it('pays for nothing any more, if only the part is told, while the provider cannot be asked', async () => {
    const orderId = await lateLessPart();
    world.bank.mood = 'down';
    await tell(...refundNews());
    world.bank.mood = 'well';
    await world.advance(10_000);
    expect([all(), world.bank.holds(orderId)]).toEqual([['expired'], 0]);
    expect(await shown(orderId)).toEqual(['expired', 'refunded', 8000]);
    await world.settle();
    await world.judgeSettled();
  });

  it('pays for nothing any more, if only the capture is told; nor if the process dies over it', async () => {
    const orderId = await lateLessPart();
    world.dieAt = 'webhook:committed';
    world.begin('news', world.shop.paymentNews(told('payment.captured')[0]!));
    await world.quiet();
    expect(world.dead).toBe(true);
    await world.reopen();
    await world.advance(10_000);
    expect([all(), world.bank.holds(orderId)]).toEqual([['expired'], 0]);
    await world.settle();
    await world.judgeSettled();
  });
});

describe('P6: a part that an admin gives back', () => {
  it('leaves the order paid; never more than is left; all that is left ends it', async () => {
    const { orderId, attemptId } = await paidOrder();
    expect(await refund(orderId, 500)).toMatchObject({ ok: true, order: { status: 'paid' } });
    expect(await shown(orderId)).toEqual(['paid', 'captured', 500]);
    await tell(...refundNews());
    expect(await shown(orderId), 'its own news add nothing').toEqual(['paid', 'captured', 500]);
    expect(await refund(orderId, 7501)).toMatchObject({ ok: false, code: 'amount_mismatch' });
    const euros = { amount: { amount: 1, currency: 'EUR' } };
    expect(await world.until(world.shop.refundOrder(orderId, BY, euros))).toMatchObject({ code: 'amount_mismatch' });
    expect(backAtBank(attemptId)).toBe(500);
    expect(await refund(orderId, 7500)).toMatchObject({ ok: true, order: { status: 'refunded' } });
    expect([await shown(orderId), sold(), backAtBank(attemptId)]).toEqual([['refunded', 'refunded', 8000], 0, 8000]);
    expect(await refund(orderId, 1)).toMatchObject({ ok: false, code: 'order_not_refundable' });
    await world.judgeSettled();
  });

  it('then all: only what is left goes back', async () => {
    const { orderId, attemptId } = await paidOrder();
    await refund(orderId, 500);
    expect(await refund(orderId, null)).toMatchObject({ ok: true, order: { status: 'refunded' } });
    expect(backAtBank(attemptId)).toBe(8000);
    expect(world.bank.refusals, 'asked for more than is left').toBe(0);
    await tell(...world.bank.news);
    await world.judgeSettled();
  });

  it('of money that the shop took itself', async () => {
    const { orderId } = await paidOrder('confirm');
    await refund(orderId, 500);
    await refund(orderId, 500);
    expect(await shown(orderId)).toEqual(['paid', 'captured', 1000]);
    await refund(orderId, null);
    expect(await shown(orderId)).toEqual(['refunded', 'refunded', 8000]);
  });

  it('with a key is given once, and another amount with it is refused', async () => {
    const { orderId, attemptId } = await paidOrder();
    for (let i = 0; i < 3; i++) expect(await refund(orderId, 500, 'k')).toMatchObject({ ok: true });
    expect(await refund(orderId, 600, 'k')).toMatchObject({ ok: false, code: 'idempotency_key_reused' });
    expect(backAtBank(attemptId)).toBe(500);
  });

  it('by ten at once: each goes back once, and together not more than came', async () => {
    const { orderId, attemptId } = await paidOrder();
    const answers = await Promise.all(
      Array.from({ length: 10 }, (_, at) => refund(orderId, 1500, `k${at}`).catch(() => null)),
    );
    expect(answers.filter((answer) => answer?.ok)).toHaveLength(5);
    expect([backAtBank(attemptId), await shown(orderId)]).toEqual([7500, ['paid', 'captured', 7500]]);
    await tell(...refundNews().reverse());
    await world.judgeSettled();
  });

  for (const mood of ['down', 'lossy', 'mute'] as const) {
    it(`at a bank that is ${mood}: it is taken on, tried on, and goes back once`, async () => {
      const { orderId, attemptId } = await paidOrder();
      world.bank.mood = mood;
      await expect(refund(orderId, 500)).rejects.toThrow();
      expect(world.rows('SELECT state FROM refunds')).toEqual([{ state: 'asked' }]);
      // Whoever has no answer asks again; that is no second refund.
      await expect(refund(orderId, 500)).rejects.toThrow();
      await world.settle();
      expect([backAtBank(attemptId), await shown(orderId)]).toEqual([500, ['paid', 'captured', 500]]);
      await world.judgeSettled();
    });
  }

  it('another one, of a part or of all, that finds one under way is told that nothing of it is stored', async () => {
    const { orderId, attemptId } = await paidOrder();
    world.bank.mood = 'down';
    await expect(refund(orderId, 700, 'a')).rejects.toThrow('it is asked again');
    await expect(refund(orderId, 100, 'b')).rejects.toThrow('nothing of this one is stored: send it again');
    await expect(refund(orderId, null, 'c')).rejects.toThrow('nothing of this one is stored: send it again');
    expect(world.rows('SELECT amount FROM refunds')).toEqual([{ amount: 700 }]);
    world.bank.mood = 'well';
    await world.settle();
    expect([backAtBank(attemptId), await shown(orderId)]).toEqual([700, ['paid', 'captured', 700]]);
    await world.judgeSettled();
  });

  it('that somebody gave back at the bank meanwhile is refused for good, and the next one is not held up', async () => {
    const { orderId, attemptId } = await paidOrder();
    world.bank.giveBack(attemptId, 7800);
    expect(await refund(orderId, 500, 'k')).toMatchObject({ ok: false, code: 'order_not_refundable' });
    expect(await refund(orderId, 500, 'k')).toMatchObject({ ok: false, code: 'order_not_refundable' });
    await tell(...refundNews());
    expect(await refund(orderId, 100)).toMatchObject({ ok: true });
    expect(await shown(orderId)).toEqual(['paid', 'captured', 7900]);
    await world.judgeSettled();
  });

  it('all of it, of which the bank has given back a part that nobody told: what is left goes back', async () => {
    const { orderId, attemptId } = await paidOrder();
    world.bank.giveBack(attemptId, 100);
    expect(await refund(orderId, null)).toMatchObject({ ok: true, order: { status: 'refunded' } });
    expect([backAtBank(attemptId), await shown(orderId)]).toEqual([8000, ['refunded', 'refunded', 8000]]);
    await world.judgeSettled();
  });

  it('at a bank that says what is back in another currency: what was asked for counts, and all can go back', async () => {
    await world.close();
    world = await open({ backIn: 'USD' });
    const { orderId, attemptId } = await paidOrder();
    expect(await refund(orderId, 500)).toMatchObject({ ok: true, order: { status: 'paid' } });
    expect(await refund(orderId, 300)).toMatchObject({ ok: true, order: { status: 'paid' } });
    expect([backAtBank(attemptId), await shown(orderId)]).toEqual([800, ['paid', 'captured', 800]]);
    expect(await refund(orderId, null)).toMatchObject({ ok: true, order: { status: 'refunded' } });
    expect(backAtBank(attemptId)).toBe(8000);
    await world.judgeSettled();
  });

  it('P10: that the ledger does not take in is asked for ever less often, and somebody is called', async () => {
    const lines: { level: number; msg: string; orderId?: string }[] = [];
    await world.close();
    const log = pino({ level: 'error' }, { write: (line: string) => void lines.push(JSON.parse(line)) });
    world = await open({ log });
    const { orderId, attemptId } = await paidOrder();
    const { ledger } = world;
    const moveOrders = ledger.moveOrders.bind(ledger);
    const refusing: typeof moveOrders = async (batch) => {
      const parts = batch.filter(({ event }) => event === 'refund_part');
      if (parts.length === 0) return await moveOrders(batch);
      const [order, attempt] = [await ledger.getOrder(orderId), await ledger.getAttempt(attemptId)];
      return batch.map(() => ({ outcome: 'amount_mismatch', order, attempt }));
    };
    Object.assign(ledger, { moveOrders: refusing });
    await expect(refund(orderId, 500), 'it is under way').rejects.toThrow('it is asked again');
    await expect(refund(orderId, null)).rejects.toThrow('nothing of this one is stored');
    const asked = () => world.bank.calls.filter(({ what }) => what === 'refund').length;
    const before = asked();
    await world.advance(10_000);
    expect(asked() - before).toBeLessThan(6);
    for (let minutes = 0; minutes < 60; minutes++) await world.jump(60_000);
    expect(lines.map(({ msg, orderId: of }) => [msg, of])).toEqual([
      ['a payment needs somebody: it does not settle by itself', orderId],
    ]);
    Object.assign(ledger, { moveOrders });
    await world.settle();
    expect([backAtBank(attemptId), await shown(orderId)]).toEqual([500, ['paid', 'captured', 500]]);
    await world.judgeSettled();
  });

  const points: Point[] = ['refund:locked', 'refund:started', 'refund:provider-answered', 'refund:committed'];
  for (const point of points) {
    it(`P4, P6: the process dies at ${point}: with the same key it goes back once`, async () => {
      const { orderId, attemptId } = await paidOrder();
      world.dieAt = point;
      world.begin('refund', world.shop.refundOrder(orderId, BY, { amount: yuan(500), madeWith: 'k' }));
      await world.quiet();
      expect(world.dead).toBe(true);
      await world.reopen();
      expect(await refund(orderId, 500, 'k')).toMatchObject({ ok: true, order: { status: 'paid' } });
      await world.settle();
      expect([backAtBank(attemptId), await shown(orderId), sold()]).toEqual([500, ['paid', 'captured', 500], 1]);
      await world.judgeSettled();
    });
  }

  it('P6: the process dies when it is asked for, and nobody asks again: it goes back', async () => {
    const { orderId, attemptId } = await paidOrder();
    world.dieAt = 'refund:started';
    world.begin('refund', world.shop.refundOrder(orderId, BY, { amount: yuan(500) }));
    await world.quiet();
    await world.settle();
    expect([backAtBank(attemptId), await shown(orderId)]).toEqual([500, ['paid', 'captured', 500]]);
  });
});

describe('P10: declined payments', () => {
  it('the tenth of an order is the last that the bank hears of, until an admin lifts it', async () => {
    const request = { saleId: world.saleId, itemCode: 'voucher', buyer: 'a', quantity: 1, key: null };
    const placed = await world.until(world.shop.place(request));
    const orderId = (placed as { order: { id: string } }).order.id;
    const pay = (token: string) => world.until(world.shop.payOrder(orderId, { method: 'bank', token }, BY));
    for (let i = 0; i < 10; i++) expect(await pay('declined')).toMatchObject({ code: 'payment_failed' });
    const { length } = world.bank.calls;
    expect(await pay('captured')).toMatchObject({ ok: false, code: 'payment_blocked', order: { status: 'reserved' } });
    expect(world.bank.calls).toHaveLength(length);
    expect(await world.shop.unblockPayments(orderId, BY)).toMatchObject({ id: orderId });
    expect(await pay('captured')).toMatchObject({ ok: true, state: 'paid' });
    expect(await world.shop.unblockPayments('1', BY)).toBeNull();
  });

  it.each(['at once', 'one after the other'])('a buyer who pays a hundred orders %s tries 30 cards', async (how) => {
    await world.close();
    world = await open({ stock: 100, perBuyer: 100, takesItsTime: () => world.turns(300) });
    const request = { saleId: world.saleId, itemCode: 'voucher', buyer: 'eve', quantity: 1, key: null };
    const placed = await world.until(Promise.all(Array.from({ length: 100 }, () => world.shop.place(request))));
    const tried = () => world.bank.calls.filter(({ what }) => what === 'capture').length;
    const round = async () => {
      const codes = new Map<string, number>();
      for (const one of placed) {
        const { id } = (one as { order: { id: string } }).order;
        world.begin('pay', world.shop.payOrder(id, { method: 'bank', token: 'declined' }, BY), (answer) => {
          const code = answer.ok ? answer.state : answer.code;
          codes.set(code, (codes.get(code) ?? 0) + 1);
        });
        if (how !== 'at once') await world.turns(1);
      }
      for (let turns = 0; turns < 20; turns++) await world.turns(100);
      return Object.fromEntries(codes);
    };
    expect(await round()).toEqual({ payment_failed: 30, payment_in_progress: 70 });
    expect(await round()).toEqual({ payment_blocked: 100 });
    expect(tried()).toBe(30);
  });
});
