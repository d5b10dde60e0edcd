import { describe, expect, it } from 'vitest';
import type { Answer, Evidence, ItemView, OrderView } from '../../src/crowd/evidence.ts';
import { judge, type Subject } from '../../src/crowd/verdict.ts';

const ITEM = 'voucher';
const MINE = 'crowd-1-';

function item(counts: Partial<ItemView> = {}): ItemView {
  return { code: ITEM, kind: 'counted', total: 2, free: 0, queued: 0, reserved: 2, sold: 0, blocked: 0, ...counts };
}

function order(id: string, buyer: string, more: Partial<OrderView> = {}): OrderView {
  return { id, buyer, item: ITEM, quantity: 1, status: 'reserved', ...more };
}

let ticks = 0;

/** An answer to a request sent after everything before it was answered. */
function answer(buyer: string, key: string, more: Partial<Answer> = {}): Answer {
  ticks += 2;
  return {
    buyer,
    key,
    sentAt: ticks,
    answeredAt: ticks + 1,
    status: 409,
    code: null,
    order: null,
    replayed: false,
    ...more,
  };
}

function yes(buyer: string, key: string, id: string, more: Partial<Answer> = {}): Answer {
  return answer(buyer, key, { status: 201, order: order(id, buyer), ...more });
}

function no(buyer: string, key: string, code: string): Answer {
  return answer(buyer, key, { code });
}

const [ANN, BOB, CAT] = ['ann', 'bob', 'cat'].map((name) => MINE + name) as [string, string, string];

/** Two units, three buyers, one for each: Ann and Bob have theirs, Cat came too late. */
function honest(change: Partial<Evidence> = {}): Evidence {
  const sale = { id: '1', name: 'Vouchers', state: 'sold_out', perBuyer: 1 };
  return {
    buyerPrefix: MINE,
    item: ITEM,
    quantity: 1,
    answers: honestAnswers(),
    before: { ...sale, items: [item({ free: 2, reserved: 0 })] },
    after: { ...sale, items: [item()] },
    orders: [order('11', ANN), order('12', BOB)],
    quiet: true,
    ...change,
  };
}

function honestAnswers(): Answer[] {
  return [
    yes(ANN, 'a1', '11'),
    yes(ANN, 'a1', '11', { replayed: true }),
    no(ANN, 'a2', 'limit_reached'),
    yes(BOB, 'b1', '12'),
    no(CAT, 'c1', 'sold_out'),
    answer(CAT, 'c2', { status: 503, code: 'overloaded' }),
    answer(CAT, 'c2', { status: null }),
    no(CAT, 'c2', 'sold_out'),
  ];
}

function counting(counts: Partial<ItemView>): Partial<Evidence> {
  return { after: { ...honest().after, items: [item(counts)] } };
}

/** The promises that the evidence breaks. */
function broken(evidence: Evidence): Subject[] {
  return judge(evidence)
    .findings.filter(({ held }) => !held)
    .map(({ subject }) => subject);
}

describe('evidence of an honest shop', () => {
  it('is acquitted, and counted', () => {
    expect(judge(honest())).toMatchObject({
      held: true,
      sold: { orders: 2, units: 2, buyers: 2 },
      replayed: 1,
      refused: { limit_reached: 1, sold_out: 2 },
      comeBacks: { '503 overloaded': 1 },
      connectionErrors: 1,
      oversold: 0,
      duplicates: 0,
      lost: 0,
      unexplained: 0,
      untold: 0,
      undecided: 0,
    });
  });

  it('may hold orders of others, also above a limit that was lowered since', () => {
    const orders = [order('11', ANN), order('12', BOB), order('9', 'dan', { quantity: 2 })];
    expect(broken(honest({ ...counting({ total: 4, reserved: 4 }), orders }))).toEqual([]);
  });

  it('may hold an order that nobody was told of, if the connection broke', () => {
    const answers = [answer(CAT, 'c1', { status: null })];
    const evidence = honest({ ...counting({ free: 1, reserved: 1 }), answers, orders: [order('13', CAT)] });
    expect(judge(evidence)).toMatchObject({ held: true, untold: 1, undecided: 1 });
  });

  it('may hold orders that expired, whose units somebody else has now', () => {
    const orders = [order('11', ANN, { status: 'expired' }), order('12', BOB), order('13', CAT)];
    const answers = [yes(ANN, 'a1', '11'), yes(BOB, 'b1', '12'), no(CAT, 'c1', 'sold_out'), yes(CAT, 'c1', '13')];
    expect(judge(honest({ answers, orders }))).toMatchObject({ held: true, expired: 1, lost: 0 });
  });

  it('may hold an order that the ledger rejected and the buyer was refused', () => {
    const orders = [order('11', ANN), order('12', BOB), order('13', CAT, { status: 'rejected' })];
    expect(broken(honest({ orders }))).toEqual([]);
  });

  it('may differ from the counts while others are ordering', () => {
    expect(broken(honest({ ...counting({ total: 5, free: 1, reserved: 4 }), quiet: false }))).toEqual([]);
  });

  it('is acquitted when the sale was sold out before the crowd came', () => {
    const evidence = honest({
      answers: [no(CAT, 'c1', 'sold_out')],
      before: honest().after,
      orders: [order('1', 'x'), order('2', 'y')],
    });
    expect(judge(evidence)).toMatchObject({ held: true, sold: { orders: 0 } });
  });
});

describe('P1, never oversell, is seen broken', () => {
  it('when the list has more live units than the total', () => {
    const orders = [...honest().orders, order('13', 'dan')];
    const verdict = judge(honest({ ...counting({ total: 2, free: -1, reserved: 3 }), orders }));
    expect(verdict).toMatchObject({ held: false, oversold: 1 });
    expect(broken(honest({ ...counting({ reserved: 3 }), orders }))).toContain('P1');
  });

  it('when buyers were told of more units than there are, whatever the list says', () => {
    const answers = [...honestAnswers().slice(0, 4), yes(CAT, 'c1', '13')];
    expect(judge(honest({ answers })).oversold).toBe(1);
    expect(broken(honest({ answers }))).toEqual(['P1', 'P3']);
  });

  it('when the sale’s own counts are above its total', () => {
    expect(broken(honest(counting({ reserved: 2, sold: 1 })))).toContain('P1');
  });
});

describe('P2, the per-buyer limit, is seen broken', () => {
  it('when a buyer holds two live orders', () => {
    const answers = [yes(ANN, 'a1', '11'), yes(ANN, 'a2', '12')];
    const evidence = honest({ answers, orders: [order('11', ANN), order('12', ANN)] });
    expect(broken(evidence)).toEqual(['P2']);
    expect(judge(evidence).duplicates).toBe(1);
  });

  it('when a buyer was told of two, though the list hides one', () => {
    const answers = [yes(ANN, 'a1', '11'), yes(ANN, 'a2', '12')];
    const evidence = honest({ ...counting({ free: 1, reserved: 1 }), answers, orders: [order('11', ANN)] });
    expect(broken(evidence)).toEqual(['P2', 'P3']);
  });
});

describe('P3, nothing accepted is lost, is seen broken', () => {
  it.each([
    ['is not in the ledger', []],
    ['belongs to somebody else', [order('12', CAT)]],
    ['was rejected afterwards', [order('12', BOB, { status: 'rejected' })]],
    ['is for another item', [order('12', BOB, { item: 'other' })]],
    ['is for another quantity', [order('12', BOB, { quantity: 2 })]],
  ])('when an order of a 201 %s', (_, bobs) => {
    const evidence = honest({ orders: [order('11', ANN), ...bobs] });
    expect(broken(evidence)).toContain('P3');
    expect(judge(evidence).lost).toBe(1);
  });
});

describe('P5, one effect per key, is seen broken', () => {
  it('when a key is given two orders', () => {
    const evidence = honest({ answers: [yes(ANN, 'a1', '11'), yes(ANN, 'a1', '12', { replayed: true })] });
    expect(broken(evidence)).toContain('P5');
    expect(judge(evidence).duplicates).toBe(1);
  });

  it('when one order is told to two buyers', () => {
    const answers = [yes(ANN, 'a1', '11'), yes(BOB, 'b1', '11', { order: order('11', BOB) })];
    const evidence = honest({ ...counting({ free: 1, reserved: 1 }), answers, orders: [order('11', ANN)] });
    expect(broken(evidence)).toContain('P5');
    expect(judge(evidence).duplicates).toBe(1);
  });

  it('when a new key is answered with the order of an old one', () => {
    expect(broken(honest({ answers: [...honestAnswers(), yes(ANN, 'a3', '11')] }))).toEqual(['P5']);
  });

  it.each(['sold_out', 'limit_reached', 'sale_closed'])(
    'when a repeat is refused %s because of its own first try',
    (code) => {
      expect(broken(honest({ answers: [...honestAnswers(), no(ANN, 'a1', code)] }))).toContain('P5');
    },
  );

  it('when a repeat does not say that it is one', () => {
    expect(broken(honest({ answers: [...honestAnswers(), yes(ANN, 'a1', '11')] }))).toEqual(['P5']);
  });

  it('but not when of two clicks at once the first was refused before there was stock', () => {
    const first = yes(BOB, 'b1', '12');
    const second = { ...no(BOB, 'b1', 'sold_out'), sentAt: first.sentAt };
    expect(broken(honest({ answers: [yes(ANN, 'a1', '11'), first, second] }))).toEqual([]);
  });
});

describe('P9, conservation, is seen broken', () => {
  it.each([
    ['the five do not add up to the total', { free: 1 }],
    ['a count is below zero', { free: -1, blocked: 1 }],
    ['the sale counts other units than its orders have', { reserved: 1, sold: 1 }],
  ])('when %s', (_, counts) => {
    expect(broken(honest(counting(counts)))).toContain('P9');
  });

  it('when an order is for an item that is not there', () => {
    expect(broken(honest({ orders: [...honest().orders, order('13', 'dan', { item: 'ghost' })] }))).toEqual(['P9']);
  });
});

describe('the contract is seen broken', () => {
  it.each([
    [500, 'internal'],
    [418, null],
    [422, 'invalid_request'],
    [409, 'made_up'],
    [409, null],
    [503, null],
    [202, null],
    [201, null],
  ])('by the answer %s %s', (status, code) => {
    const evidence = honest({ answers: [...honestAnswers(), answer(CAT, 'c3', { status, code })] });
    expect(broken(evidence)).toEqual(['API']);
    expect(judge(evidence).unexplained).toBe(1);
  });

  it('when a 201 carries an order of somebody else', () => {
    const answers = honestAnswers().map((one) => (one.key === 'b1' ? { ...one, order: order('12', ANN) } : one));
    expect(broken(honest({ answers }))).toContain('API');
  });

  it('when an order is in the ledger and its buyer was refused', () => {
    const answers = [yes(ANN, 'a1', '11'), no(BOB, 'b1', 'sold_out')];
    expect(broken(honest({ answers }))).toEqual(['API']);
  });

  it('when somebody without an order is refused for the limit', () => {
    expect(broken(honest({ answers: [...honestAnswers().slice(0, 5), no(CAT, 'c2', 'limit_reached')] }))).toEqual([
      'API',
    ]);
  });

  it('when sold_out comes before limit_reached', () => {
    expect(broken(honest({ answers: [...honestAnswers(), no(ANN, 'a9', 'sold_out')] }))).toEqual(['API']);
  });

  it('when sold_out sticks although units are free', () => {
    const before = { ...honest().before, items: [item({ total: 5, free: 5, reserved: 0 })] };
    expect(broken(honest({ ...counting({ total: 5, free: 3 }), before }))).toEqual(['API']);
  });
});

it('names a few faults and counts them all', () => {
  const answers = Array.from({ length: 50 }, (_, at) => yes(MINE + at, `k${at}`, `o${at}`));
  const lost = judge(honest({ answers, orders: [] })).findings.find(({ subject }) => subject === 'P3')!;
  expect(lost.faults).toBe(50);
  expect(lost.examples).toHaveLength(5);
});
