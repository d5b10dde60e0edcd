import { describe, expect, it } from 'vitest';
import type { BuyerAnswer, Evidence, Followed, ItemView, OrderView } from '../../src/crowd/evidence.ts';
import { judge, type Subject } from '../../src/crowd/verdict.ts';

const ITEM = 'voucher';
const MINE = 'crowd-1-';

function item(counts: Partial<ItemView> = {}): ItemView {
  return { code: ITEM, kind: 'counted', total: 2, free: 0, queued: 0, reserved: 2, sold: 0, blocked: 0, ...counts };
}

function order(id: string, buyer: string, more: Partial<OrderView> = {}): OrderView {
  return { id, buyer, item: ITEM, quantity: 1, status: 'reserved', reason: null, ...more };
}

let ticks = 0;

/** An answer to a request that was sent after all earlier answers. */
function answer(buyer: string, key: string, more: Partial<BuyerAnswer> = {}): BuyerAnswer {
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

function yes(buyer: string, key: string, id: string, more: Partial<BuyerAnswer> = {}): BuyerAnswer {
  return answer(buyer, key, { status: 201, order: order(id, buyer), ...more });
}

function no(buyer: string, key: string, code: string): BuyerAnswer {
  return answer(buyer, key, { code });
}

const [ANN, BOB, CAT] = ['ann', 'bob', 'cat'].map((name) => MINE + name) as [string, string, string];

/** Two units, three buyers, a limit of one: Ann and Bob have theirs, Cat came too late. */
function honest(change: Partial<Evidence> = {}): Evidence {
  const sale = { id: '1', name: 'Vouchers', state: 'sold_out', perBuyer: 1 };
  return {
    buyerPrefix: MINE,
    item: ITEM,
    quantity: 1,
    answers: honestAnswers(),
    following: following(),
    before: { ...sale, items: [item({ free: 2, reserved: 0 })] },
    after: { ...sale, items: [item()] },
    orders: [order('11', ANN), order('12', BOB)],
    quiet: true,
    ...change,
  };
}

function honestAnswers(): BuyerAnswer[] {
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

/** Orders that were followed; none, unless the shop answers 202. */
function following(orders: Followed[] = [], more: Partial<Evidence['following']> = {}): Evidence['following'] {
  return { orders, odd: {}, boundMs: 60_000, waited: true, ...more };
}

/** A 202. */
function later(buyer: string, key: string, id: string, more: Partial<BuyerAnswer> = {}): BuyerAnswer {
  return answer(buyer, key, { status: 202, order: order(id, buyer, { status: 'queued' }), ...more });
}

function seen(end: OrderView): Followed {
  return { id: end.id, last: 'queued', end, tookMs: 700 };
}

function notSeen(id: string, last: Followed['last'] = 'queued'): Followed {
  return { id, last, end: null, tookMs: null };
}

function rejected(id: string, buyer: string, reason: string | null = 'gate_rebuilt'): OrderView {
  return order(id, buyer, { status: 'rejected', reason });
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

/** Like the honest shop, but the orders of Bob and Cat were answered 202, and Cat's was rejected. */
function lagging(change: Partial<Evidence> = {}): Evidence {
  return honest({
    answers: laggingAnswers(),
    following: following([seen(order('12', BOB)), seen(rejected('13', CAT))]),
    orders: [order('11', ANN), order('12', BOB), rejected('13', CAT)],
    ...change,
  });
}

function laggingAnswers(): BuyerAnswer[] {
  return [
    yes(ANN, 'a1', '11'),
    later(BOB, 'b1', '12'),
    later(BOB, 'b1', '12', { replayed: true }),
    yes(BOB, 'b1', '12', { replayed: true }),
    no(BOB, 'b2', 'limit_reached'),
    later(CAT, 'c1', '13'),
  ];
}

function examples(evidence: Evidence): string {
  return judge(evidence)
    .findings.flatMap((finding) => finding.examples)
    .join('\n');
}

describe('evidence of an honest shop that answers 202', () => {
  it('is acquitted, and counted: a 202 that ended reserved is sold, one that ended rejected was refused later', () => {
    expect(judge(lagging())).toMatchObject({
      held: true,
      sold: { orders: 2, units: 2, buyers: 2 },
      queued: { orders: 2, reserved: 1, rejected: { gate_rebuilt: 1 }, undecided: [], longestMs: 700 },
      replayed: 2,
      lost: 0,
      untold: 0,
      undecided: 0,
    });
  });

  it('says nothing of 202s where there were none', () => {
    const { findings, queued } = judge(honest());
    expect(findings.map(({ subject }) => subject)).toEqual(['P1', 'P2', 'P3', 'P5', 'P9', 'API']);
    expect(queued).toEqual({ orders: 0, reserved: 0, rejected: {}, undecided: [], longestMs: null });
  });

  it('may decide an order after the last look, and may have been unable to find it before', () => {
    const looks = following([notSeen('12', 'missing'), notSeen('13', 'unheard')]);
    expect(judge(lagging({ following: looks }))).toMatchObject({
      held: true,
      queued: { reserved: 1, rejected: { gate_rebuilt: 1 } },
    });
  });

  it('may repeat a 202 with the order as it is by then, expired for instance', () => {
    const gone = order('12', BOB, { status: 'expired' });
    const answers = [later(BOB, 'b1', '12'), yes(BOB, 'b1', '12', { replayed: true, order: gone })];
    const evidence = lagging({ ...counting({ free: 2, reserved: 0 }), answers, orders: [gone] });
    expect(judge({ ...evidence, following: following([seen(gone)]) })).toMatchObject({ held: true, expired: 1 });
  });

  it('may show an order queued again that a 201 had confirmed, while the ledger is out', () => {
    const answers = [yes(ANN, 'a1', '11'), later(ANN, 'a1', '11', { replayed: true }), later(BOB, 'b1', '12')];
    const orders = [order('11', ANN), order('12', BOB)];
    const evidence = lagging({ answers, orders, following: following([seen(order('12', BOB))]) });
    expect(judge(evidence)).toMatchObject({ held: true, queued: { orders: 1, reserved: 1 } });
  });

  it('has not been waited for when the crowd was interrupted', () => {
    const evidence = lagging({
      ...counting({ queued: 1, reserved: 1 }),
      following: following([notSeen('12'), seen(rejected('13', CAT))], { waited: false }),
      answers: laggingAnswers().filter(({ buyer, status }) => buyer !== BOB || status !== 201),
      orders: [order('11', ANN), rejected('13', CAT)],
    });
    expect(judge(evidence)).toMatchObject({ held: true, queued: { undecided: ['12'] }, lost: 0 });
  });

  it('holds no units, and no place under the limit, with an order that is not decided', () => {
    const dan = `${MINE}dan`;
    const evidence = lagging({
      answers: [...laggingAnswers(), later(dan, 'd1', '14'), later(dan, 'd2', '15'), no(dan, 'd3', 'sold_out')],
      following: following([...lagging().following.orders, notSeen('14'), notSeen('15')], { waited: false }),
    });
    expect(judge(evidence)).toMatchObject({ held: true, oversold: 0, queued: { undecided: ['14', '15'] } });
  });

  it('may have told sold_out for units of an order that was lost with the gate', () => {
    const before = { ...honest().before, items: [item({ free: 2, reserved: 0 })] };
    const answers = [
      yes(ANN, 'a1', '11'),
      answer(BOB, 'b1', { status: 503, code: 'unavailable' }),
      no(CAT, 'c1', 'sold_out'),
    ];
    const evidence = honest({ ...counting({ free: 1, reserved: 1 }), before, answers, orders: [order('11', ANN)] });
    expect(broken(evidence)).toEqual([]);
    const without = { ...evidence, answers: answers.filter(({ buyer }) => buyer !== BOB) };
    expect(broken(without)).toEqual(['API']);
  });
});

describe('a 202 is seen broken', () => {
  it.each([
    ['queued', 'still queued 60 s after the last buyer: 12'],
    ['missing', 'not found (404) 60 s after the last buyer: 12'],
    ['unheard', 'still without an answer 60 s after the last buyer: 12'],
  ] as const)('when it is not decided by the end: %s', (last, words) => {
    const evidence = lagging({
      ...counting({ queued: 1, reserved: 1 }),
      following: following([notSeen('12', last), seen(rejected('13', CAT))]),
      orders: [order('11', ANN), rejected('13', CAT)],
      answers: laggingAnswers().filter(({ status, buyer }) => buyer !== BOB || status !== 201),
    });
    expect(broken(evidence)).toEqual(['P3']);
    expect(judge(evidence)).toMatchObject({ queued: { undecided: ['12'] }, lost: 0 });
    expect(examples(evidence)).toBe(words);
  });

  it('when the list, too, has it as queued', () => {
    const queued = order('12', BOB, { status: 'queued' });
    const evidence = lagging({
      ...counting({ queued: 1, reserved: 1 }),
      following: following([notSeen('12'), seen(rejected('13', CAT))]),
      orders: [order('11', ANN), queued, rejected('13', CAT)],
      answers: [yes(ANN, 'a1', '11'), later(BOB, 'b1', '12'), later(CAT, 'c1', '13')],
    });
    expect(broken(evidence)).toEqual(['P3']);
  });

  it('and names the orders, but not a thousand of them', () => {
    const answers = Array.from({ length: 50 }, (_, at) => later(MINE + at, `k${at}`, `o${at}`));
    const evidence = lagging({
      ...counting({ total: 50, queued: 50, reserved: 0 }),
      answers,
      following: following(answers.map(({ order }) => notSeen(order!.id))),
      orders: [],
    });
    expect(judge(evidence).findings.find(({ held }) => !held)).toMatchObject({ subject: 'P3', faults: 50 });
    expect(examples(evidence)).toMatch(/: o0, o1, .*o19 and 30 more$/);
  });

  it.each<[string, OrderView, OrderView[]]>([
    ['was seen reserved and is not in the ledger', order('12', BOB), []],
    ['was seen reserved and is rejected', order('12', BOB), [rejected('12', BOB)]],
    ['was seen reserved and is queued', order('12', BOB), [order('12', BOB, { status: 'queued' })]],
    ['was seen rejected and is reserved', rejected('12', BOB), [order('12', BOB)]],
    ['was seen rejected and is not in the ledger', rejected('12', BOB), []],
    ['belongs to somebody else', order('12', BOB), [order('12', CAT)]],
    ['is for another quantity', order('12', BOB), [order('12', BOB, { quantity: 2 })]],
    ['is cancelled', order('12', BOB), [order('12', BOB, { status: 'cancelled' })]],
  ])('when the order %s', (_, end, bobs) => {
    const evidence = lagging({
      answers: [yes(ANN, 'a1', '11'), later(BOB, 'b1', '12')],
      following: following([seen(end)]),
      orders: [order('11', ANN), ...bobs],
    });
    expect(broken(evidence)).toContain('P3');
    expect(judge(evidence).lost).toBe(1);
  });

  it.each([
    ['without a reason', null],
    ['for a reason nobody knows', 'bad_mood'],
  ])('when it is rejected %s', (_, reason) => {
    const bad = rejected('13', CAT, reason);
    const evidence = lagging({
      following: following([seen(order('12', BOB)), seen(bad)]),
      orders: [order('11', ANN), order('12', BOB), bad],
    });
    expect(broken(evidence)).toEqual(['P3']);
  });

  it.each([
    ['is not queued', order('14', CAT)],
    ['is somebody else’s', order('14', ANN, { status: 'queued' })],
    ['is of another size', order('14', CAT, { status: 'queued', quantity: 2 })],
  ])('when its order %s', (_, wrong) => {
    const answers = [...laggingAnswers(), answer(CAT, 'c2', { status: 202, order: wrong })];
    expect(broken(lagging({ answers }))).toContain('API');
  });

  it('when its owner is answered otherwise than the contract says', () => {
    const evidence = lagging();
    const looks = { ...evidence.following, odd: { '500 internal': 3 } };
    expect(broken({ ...evidence, following: looks })).toEqual(['API']);
    expect(judge({ ...evidence, following: looks }).unexplained).toBe(3);
  });

  it('when more is sold by 202s than there is: P1, also if the list hides it', () => {
    const dan = `${MINE}dan`;
    const answers = [...laggingAnswers(), later(dan, 'd1', '14')];
    const looks = following([...lagging().following.orders, seen(order('14', dan))]);
    const listed = lagging({ answers, following: looks, orders: [...lagging().orders, order('14', dan)] });
    expect(judge(listed).oversold).toBe(1);
    expect(broken(lagging({ answers, following: looks }))).toEqual(['P1', 'P3']);
  });

  it('when it lifts a buyer above the limit: P2, also if the list hides it', () => {
    const answers = [...laggingAnswers(), later(ANN, 'a2', '14')];
    const looks = following([...lagging().following.orders, seen(order('14', ANN))]);
    const more = counting({ total: 3, reserved: 3 });
    const evidence = lagging({ ...more, answers, following: looks, orders: [...lagging().orders, order('14', ANN)] });
    expect(broken(evidence)).toEqual(['P2']);
    expect(broken(lagging({ answers, following: looks }))).toContain('P2');
  });

  it('when a 201 that is not a repeat shows something else than a reserved order', () => {
    const gone = order('12', BOB, { status: 'expired' });
    expect(broken(honest({ answers: [yes(BOB, 'b1', '12', { order: gone })] }))).toContain('API');
    expect(broken(honest({ answers: [later(BOB, 'b1', '12'), yes(BOB, 'b1', '12', { order: gone })] }))).toContain(
      'API',
    );
  });
});

describe('a key of a 202', () => {
  /** Cat's key, after its order 13 was rejected. */
  function again(more: () => BuyerAnswer[]): Evidence {
    const orders = [order('11', ANN), rejected('13', CAT), order('14', CAT)];
    return lagging({
      answers: [yes(ANN, 'a1', '11'), later(CAT, 'c1', '13'), ...more()],
      following: following([seen(rejected('13', CAT)), seen(order('14', CAT))]),
      orders,
    });
  }

  it.each([201, 202])('is free again when its order was rejected: a new order (%s), and its repeats', (status) => {
    const evidence = again(() => [
      no(CAT, 'c1', 'sold_out'),
      status === 201 ? yes(CAT, 'c1', '14') : later(CAT, 'c1', '14'),
      yes(CAT, 'c1', '14', { replayed: true }),
    ]);
    expect(judge(evidence)).toMatchObject({ held: true, sold: { orders: 2 }, duplicates: 0 });
  });

  it('may be free again more than once', () => {
    const evidence = again(() => [later(CAT, 'c1', '15'), yes(CAT, 'c1', '14')]);
    const orders = [...evidence.orders, rejected('15', CAT)];
    expect(broken({ ...evidence, orders })).toEqual([]);
  });

  it('is not free while its order stands', () => {
    const evidence = lagging({
      ...counting({ total: 3, reserved: 3 }),
      before: { ...honest().before, perBuyer: 2 },
      answers: [yes(ANN, 'a1', '11'), later(BOB, 'b1', '12'), later(BOB, 'b1', '14')],
      following: following([seen(order('12', BOB)), seen(order('14', BOB))]),
      orders: [order('11', ANN), order('12', BOB), order('14', BOB)],
    });
    expect(broken(evidence)).toEqual(['P5']);
    expect(judge(evidence).duplicates).toBe(1);
  });

  it('is not free for the other of two clicks at once', () => {
    const first = later(CAT, 'c1', '12', { order: order('12', CAT, { status: 'queued' }) });
    const second = { ...later(CAT, 'c1', '14'), sentAt: first.sentAt };
    const evidence = lagging({
      ...counting({ total: 3, reserved: 3 }),
      before: { ...honest().before, perBuyer: 2 },
      answers: [yes(ANN, 'a1', '11'), first, second],
      following: following([seen(order('12', CAT)), seen(order('14', CAT))]),
      orders: [order('11', ANN), order('12', CAT), order('14', CAT)],
    });
    expect(broken(evidence)).toEqual(['P5']);
  });

  it('is not free for an order that comes to nothing, after one that stands', () => {
    const evidence = again(() => []);
    const answers = [yes(ANN, 'a1', '11'), yes(CAT, 'c1', '14'), later(CAT, 'c1', '13')];
    expect(broken({ ...evidence, answers })).toEqual(['P5']);
  });

  it('is not free because an order was rejected that a 201 had confirmed', () => {
    const evidence = again(() => [yes(CAT, 'c1', '13', { replayed: true }), yes(CAT, 'c1', '14')]);
    expect(broken(evidence)).toEqual(['P3', 'P5']);
  });

  it('does not go back to the order that was rejected', () => {
    const back = (): BuyerAnswer => later(CAT, 'c1', '13', { replayed: true });
    expect(broken(again(() => [yes(CAT, 'c1', '14'), back()]))).toEqual(['P5']);
    const both = again(() => [later(CAT, 'c1', '15'), back()]);
    const orders = [order('11', ANN), order('14', BOB), rejected('13', CAT), rejected('15', CAT)];
    expect(broken({ ...both, answers: [...both.answers, yes(BOB, 'b1', '14')], orders })).toEqual(['P5']);
  });

  it('gives the same order without saying that it is a repeat', () => {
    const answers = [yes(ANN, 'a1', '11'), later(BOB, 'b1', '12'), yes(BOB, 'b1', '12')];
    expect(broken(lagging({ answers }))).toEqual(['P5']);
  });

  it('is refused though its order stands', () => {
    expect(broken(lagging({ answers: [...laggingAnswers(), no(BOB, 'b1', 'sold_out')] }))).toContain('P5');
  });
});
