import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type {
  DeliveryTry,
  EndpointCreated,
  NewDelivery,
  NewEndpoint,
  OutgoingEvent,
  WebhookDelivery,
  WebhookEndpoint,
} from '../../src/ledger/port.ts';
import { actor } from '../../src/model/actor.ts';
import type { OrderRecord } from '../../src/model/order.ts';
import { WEBHOOK_BOUNDS, WEBHOOK_EVENTS } from '../../src/model/webhook.ts';
import type { LedgerUnderTest } from './ledger.ts';
import { T0 } from './manual.ts';

const ALICE = actor('admin', 'alice', '10.0.0.7');
const HOUR_MS = 3600 * 1000;
const DAY_MS = 24 * HOUR_MS;
const GIVE_UP_MS = 3 * DAY_MS;
const KEPT_MS = 7 * DAY_MS;
const ALL = { limit: 100, before: null };

export interface WebhookWorld {
  world(): LedgerUnderTest;
  /** A new order of that buyer. */
  reserve(buyer: string): Promise<OrderRecord>;
}

/** The contract of src/ledger/port/webhooks.ts. */
export function webhookContract({ world, reserve }: WebhookWorld): void {
  describe('webhooks', () => {
    let lastId: number;
    const id = (): string => String(++lastId);
    const ledger = () => world().ledger;
    const webhooks = () => world().ledger.webhooks;

    beforeEach(() => {
      lastId = 5_000_000;
      ledger().keepEvents = true;
    });
    afterEach(() => {
      ledger().keepEvents = false;
    });

    function endpoint(over: Partial<NewEndpoint> = {}): NewEndpoint {
      const url = 'https://shop.example/hooks?token=1';
      return { id: id(), url, events: WEBHOOK_EVENTS, secret: 'whsec_1', madeWith: null, ...over };
    }

    async function create(over: Partial<NewEndpoint> = {}): Promise<WebhookEndpoint> {
      return made(await webhooks().createEndpoint(endpoint(over), ALICE, id()));
    }

    function made(created: EndpointCreated): WebhookEndpoint {
      if (!('endpoint' in created)) throw new Error(created.outcome);
      return created.endpoint;
    }

    async function move(orderId: string, event: 'pay' | 'cancel' | 'refund'): Promise<void> {
      const money = { taken: `receipt-${orderId}`, attemptId: id(), amount: { amount: 500, currency: 'CNY' } };
      const paid = event === 'pay' ? { money } : {};
      const [moved] = await ledger().moveOrders([{ orderId, event, by: ALICE, auditId: id(), fence: null, ...paid }]);
      expect(moved!.outcome).toBe('moved');
    }

    function deliveryOf(event: OutgoingEvent, { id: endpointId }: WebhookEndpoint): NewDelivery {
      const { orderId, version, type } = event;
      return { id: id(), endpointId, orderId, version, type, body: `{"id":"${event.id}","who":"Zoë 🎟"}` };
    }

    /** Everything in the outbox, for each of these. */
    async function takeOver(...endpoints: WebhookEndpoint[]): Promise<number> {
      const events = await ledger().outgoingEvents(1000);
      const deliveries = events.flatMap((event) => endpoints.map((each) => deliveryOf(event, each)));
      return webhooks().takeOverEvents(
        events.map((event) => event.id),
        deliveries,
      );
    }

    const due = (...endpoints: WebhookEndpoint[]): Promise<WebhookDelivery[]> =>
      webhooks().dueDeliveries(endpoints.map((each) => ({ endpointId: each.id, limit: 100 })));

    const dueEvents = async (...endpoints: WebhookEndpoint[]): Promise<string[]> =>
      (await due(...endpoints)).map(({ eventId }) => eventId);

    function tried({ id: deliveryId, tries }: WebhookDelivery, over: Partial<DeliveryTry> = {}): DeliveryTry {
      return { id: deliveryId, tries, delivered: true, status: 200, error: null, retryMs: 0, ...over };
    }

    const failing = { delivered: false, status: 500, retryMs: HOUR_MS };

    it('endpoints: made, listed newest first, got; a secret is what it was made with', async () => {
      const first = await create();
      world().clock.advance(1000);
      const second = await create({ events: ['order.paid', 'order.refunded'], secret: 'whsec_2' });
      expect(second).toEqual({
        id: second.id,
        url: 'https://shop.example/hooks?token=1',
        events: ['order.paid', 'order.refunded'],
        secret: 'whsec_2',
        state: 'active',
        reason: null,
        createdAtMs: T0 + 1000,
      });
      expect(await webhooks().listEndpoints(ALL)).toEqual([second, first]);
      expect(await webhooks().listEndpoints({ limit: 1, before: null })).toEqual([second]);
      expect(await webhooks().listEndpoints({ limit: 1, before: second.id })).toEqual([first]);
      expect(await webhooks().activeEndpoints()).toEqual([first, second]);
      expect(await webhooks().getEndpoint(second.id)).toEqual(second);
      expect(await webhooks().getEndpoint('1')).toBeNull();
    });

    it('an endpoint that is gone stays in the list; a deleted one is nowhere; both are in the audit', async () => {
      const [gone, deleted] = [await create(), await create()];
      expect(await webhooks().endpointGone(gone.id, 'it said so', ALICE, id())).toBe(true);
      expect(await webhooks().endpointGone(gone.id, 'again', ALICE, id())).toBe(false);
      expect(await webhooks().deleteEndpoint(deleted.id, ALICE, id())).toBe(true);
      expect(await webhooks().deleteEndpoint(deleted.id, ALICE, id())).toBe(false);
      expect(await webhooks().endpointGone(deleted.id, 'too late', ALICE, id())).toBe(false);
      expect(await webhooks().listEndpoints(ALL)).toEqual([{ ...gone, state: 'gone', reason: 'it said so' }]);
      expect(await webhooks().activeEndpoints()).toEqual([]);
      expect(await webhooks().getEndpoint(deleted.id)).toBeNull();
      expect(await webhooks().listDeliveries(deleted.id, ALL)).toBeNull();

      const audit = async (subject: string) =>
        (await ledger().audit({ subject: `webhook:${subject}` }, ALL)).map(({ action, actor, origin, detail }) => ({
          ...{ action, actor, origin },
          detail: JSON.parse(detail),
        }));
      const by = { actor: 'admin:alice', origin: '10.0.0.7' };
      // Without its query, which may contain a secret: audit rows are never deleted.
      const url = 'https://shop.example/hooks';
      const create_ = { ...by, action: 'webhook.create', detail: { url, events: [...WEBHOOK_EVENTS] } };
      expect(await audit(gone.id)).toEqual([
        { ...by, action: 'webhook.gone', detail: { reason: 'it said so' } },
        create_,
      ]);
      expect(await audit(deleted.id)).toEqual([{ ...by, action: 'webhook.delete', detail: { url } }, create_]);
      expect(await webhooks().deleteEndpoint(gone.id, ALICE, id()), 'one that is gone can be deleted').toBe(true);
      expect(await webhooks().listEndpoints(ALL)).toEqual([]);
    });

    it('the key of a call makes one endpoint, for as long as keys are kept', async () => {
      const first = await webhooks().createEndpoint(endpoint({ madeWith: 'k' }), ALICE, id());
      expect(first.outcome).toBe('created');
      const again = await webhooks().createEndpoint(endpoint({ madeWith: 'k', secret: 'other' }), ALICE, id());
      expect(again).toEqual({ outcome: 'repeat', endpoint: made(first) });
      const other = endpoint({ madeWith: 'k', url: 'https://other.example/' });
      expect(await webhooks().createEndpoint(other, ALICE, id())).toEqual({ outcome: 'key_reused' });
      const fewer = endpoint({ madeWith: 'k', events: ['order.paid'] });
      expect(await webhooks().createEndpoint(fewer, ALICE, id())).toEqual({ outcome: 'key_reused' });
      world().clock.advance(DAY_MS);
      expect((await webhooks().createEndpoint(other, ALICE, id())).outcome).toBe('created');
      await webhooks().deleteEndpoint(other.id, ALICE, id());
      expect((await webhooks().createEndpoint(fewer, ALICE, id())).outcome).toBe('created');
      expect((await webhooks().listEndpoints(ALL)).map((each) => each.id)).toEqual([fewer.id, made(first).id]);
    });

    it('there are only so many endpoints', async () => {
      for (let at = 0; at < WEBHOOK_BOUNDS.endpointsMax; at++) await create();
      expect(await webhooks().createEndpoint(endpoint(), ALICE, id())).toEqual({ outcome: 'too_many' });
      const [{ id: newest }] = (await webhooks().activeEndpoints()) as [WebhookEndpoint];
      await webhooks().deleteEndpoint(newest, ALICE, id());
      expect((await webhooks().createEndpoint(endpoint(), ALICE, id())).outcome).toBe('created');
    });

    it('an event becomes its deliveries and leaves the outbox, in one step that a crash does not undo or double', async () => {
      const [one, two] = [await create(), await create()];
      const order = await reserve('ann');
      const [event] = await ledger().outgoingEvents(10);
      const delivery = deliveryOf(event!, one);
      expect(await webhooks().takeOverEvents([event!.id], [delivery])).toBe(1);
      await world().crash();
      expect(await ledger().outgoingEvents(10)).toEqual([]);
      expect(await due(one, two)).toEqual([
        {
          ...delivery,
          eventId: `${order.id}-1`,
          state: 'pending',
          tries: 0,
          lastStatus: null,
          lastError: null,
          nextAtMs: T0,
          createdAtMs: T0,
          doneAtMs: null,
        },
      ]);
      // Somebody else had read it before, too.
      expect(await webhooks().takeOverEvents([event!.id], [deliveryOf(event!, one), deliveryOf(event!, two)])).toBe(0);
      expect(await due(one, two)).toHaveLength(1);
      expect(await webhooks().takeOverEvents([], [])).toBe(0);
    });

    it('an event that nobody wants is forgotten; an endpoint that is not active gets nothing', async () => {
      const [gone, deleted] = [await create(), await create()];
      await webhooks().endpointGone(gone.id, 'gone', ALICE, id());
      await webhooks().deleteEndpoint(deleted.id, ALICE, id());
      await reserve('ann');
      await reserve('bob');
      expect(await takeOver(gone, deleted)).toBe(2);
      expect(await ledger().outgoingEvents(10)).toEqual([]);
      expect(await due(gone, deleted)).toEqual([]);
      expect(await webhooks().listDeliveries(gone.id, ALL)).toEqual([]);
    });

    it('of one order and endpoint one is due at a time, the oldest; others are not held up by it', async () => {
      const [one, two] = [await create(), await create()];
      const [ann, bob] = [await reserve('ann'), await reserve('bob')];
      await move(ann.id, 'pay');
      await takeOver(one, two);
      await move(ann.id, 'refund');
      await takeOver(one, two);
      const first = [`${ann.id}-1`, `${bob.id}-1`];
      expect((await dueEvents(one)).toSorted()).toEqual(first);
      expect((await dueEvents(two)).toSorted()).toEqual(first);

      const [head] = (await due(one)).filter(({ orderId }) => orderId === ann.id);
      // A try failed: deliveries behind it go on waiting, also when it is due again.
      await webhooks().settleDeliveries([tried(head!, failing)], GIVE_UP_MS);
      expect(await dueEvents(one)).toEqual([`${bob.id}-1`]);
      world().clock.advance(HOUR_MS);
      expect((await dueEvents(one)).toSorted()).toEqual(first);
      await webhooks().settleDeliveries([{ ...tried(head!), tries: 1 }], GIVE_UP_MS);
      expect((await dueEvents(one)).toSorted()).toEqual([`${ann.id}-2`, `${bob.id}-1`]);
      expect((await dueEvents(two)).toSorted()).toEqual(first);
      const [second] = (await due(one)).filter(({ orderId }) => orderId === ann.id);
      await webhooks().settleDeliveries([tried(second!)], GIVE_UP_MS);
      expect((await dueEvents(one)).toSorted()).toEqual([`${ann.id}-3`, `${bob.id}-1`]);
      // Made when nothing is pending: due at once.
      const [third] = (await due(one)).filter(({ orderId }) => orderId === ann.id);
      await webhooks().settleDeliveries([tried(third!)], GIVE_UP_MS);
      expect(await dueEvents(one)).toEqual([`${bob.id}-1`]);
    });

    it('an event that is made after the older ones have ended is due at once', async () => {
      const one = await create();
      const ann = await reserve('ann');
      await takeOver(one);
      await webhooks().settleDeliveries(
        (await due(one)).map((each) => tried(each)),
        GIVE_UP_MS,
      );
      await move(ann.id, 'cancel');
      await takeOver(one);
      expect(await dueEvents(one)).toEqual([`${ann.id}-2`]);
    });

    it('the next of an order is due although it comes in the instant in which the one before ends', async () => {
      const one = await create();
      for (let round = 0; round < 12; round++) {
        const order = await reserve(`buyer${round}`);
        await takeOver(one);
        const [head] = await due(one);
        await move(order.id, 'cancel');
        await Promise.all([webhooks().settleDeliveries([tried(head!)], GIVE_UP_MS), takeOver(one)]);
        expect(await dueEvents(one)).toEqual([`${order.id}-2`]);
        await webhooks().settleDeliveries(
          (await due(one)).map((each) => tried(each)),
          GIVE_UP_MS,
        );
      }
    });

    it('what is due: by endpoint, the longest first, no more than asked for', async () => {
      const [one, two, none] = [await create(), await create(), await create()];
      const orders: string[] = [];
      for (const buyer of ['ann', 'bob', 'cid']) {
        orders.push((await reserve(buyer)).id);
        await takeOver(one, two);
        world().clock.advance(10);
      }
      const wanted = [
        { endpointId: two.id, limit: 2 },
        { endpointId: one.id, limit: 1 },
        { endpointId: none.id, limit: 5 },
      ];
      const found = await webhooks().dueDeliveries(wanted);
      expect(found.map(({ endpointId, orderId }) => [endpointId, orderId])).toEqual([
        [two.id, orders[0]],
        [two.id, orders[1]],
        [one.id, orders[0]],
      ]);
      expect(await webhooks().dueDeliveries([])).toEqual([]);
    });

    it('a try that failed is due again later; after its time it has failed, and the next of the order is due', async () => {
      const one = await create();
      const ann = await reserve('ann');
      await move(ann.id, 'cancel');
      await takeOver(one);
      world().clock.advance(5 * DAY_MS);
      // The time counts from the first try, not from when the event happened.
      let [head] = await due(one);
      const error = `${'x'.repeat(499)}🎟 and more`;
      const [settled] = await webhooks().settleDeliveries(
        [tried(head!, { delivered: false, status: null, error, retryMs: HOUR_MS })],
        GIVE_UP_MS,
      );
      const now = world().clock.now();
      expect(settled).toMatchObject({ state: 'pending', tries: 1, lastStatus: null, nextAtMs: now + HOUR_MS });
      expect(settled!.lastError!.startsWith('x'.repeat(499))).toBe(true);
      expect(await webhooks().listDeliveries(one.id, ALL)).toContainEqual(settled);
      world().clock.advance(GIVE_UP_MS - HOUR_MS);
      [head] = await due(one);
      await webhooks().settleDeliveries([tried(head!, failing)], GIVE_UP_MS);
      expect((await webhooks().listDeliveries(one.id, ALL))!.at(-1)).toMatchObject({ state: 'pending', tries: 2 });
      world().clock.advance(HOUR_MS);
      [head] = await due(one);
      const [ended] = await webhooks().settleDeliveries([tried(head!, failing)], GIVE_UP_MS);
      expect(ended).toMatchObject({ state: 'failed', tries: 3, lastStatus: 500, lastError: null, nextAtMs: null });
      expect(ended!.doneAtMs).toBe(world().clock.now());
      expect(await dueEvents(one)).toEqual([`${ann.id}-2`]);
    });

    it('tries that ended differently are settled together, each by itself', async () => {
      const one = await create();
      for (const buyer of ['ann', 'bob', 'cid', 'dan']) await reserve(buyer);
      await takeOver(one);
      const ends: Partial<DeliveryTry>[] = [
        {},
        { delivered: false, status: null, error: 'connect ECONNREFUSED', retryMs: 1000 },
        { delivered: false, status: null, error: "it's «too late» 🎟", retryMs: 2000 },
        { delivered: false, status: 302, error: 'a redirect', retryMs: GIVE_UP_MS + 1 },
      ];
      const tries = (await due(one)).map((each, at) => tried(each, ends[at]));
      const settled = await webhooks().settleDeliveries(tries, GIVE_UP_MS);
      const seen = (await webhooks().listDeliveries(one.id, ALL))!;
      expect(settled.toSorted((a, b) => Number(b.id) - Number(a.id))).toEqual(seen);
      expect(tries.map(({ id: of }) => seen.find((each) => each.id === of))).toMatchObject([
        { state: 'delivered', lastStatus: 200, lastError: null, nextAtMs: null, doneAtMs: T0 },
        { state: 'pending', lastStatus: null, lastError: ends[1]!.error, nextAtMs: T0 + 1000, doneAtMs: null },
        { state: 'pending', lastStatus: null, lastError: ends[2]!.error, nextAtMs: T0 + 2000, doneAtMs: null },
        { state: 'failed', lastStatus: 302, lastError: 'a redirect', nextAtMs: null, doneAtMs: T0 },
      ]);
    });

    it('what is not as it was when it was tried stays as it is', async () => {
      const one = await create();
      await reserve('ann');
      await takeOver(one);
      const [head] = await due(one);
      expect(await webhooks().settleDeliveries([tried(head!, failing)], GIVE_UP_MS)).toHaveLength(1);
      // The outcome of one try twice, and of a delivery that does not exist.
      expect(await webhooks().settleDeliveries([tried(head!)], GIVE_UP_MS)).toEqual([]);
      expect(await webhooks().settleDeliveries([{ ...tried(head!), id: '77' }], GIVE_UP_MS)).toEqual([]);
      const both = [
        { ...tried(head!), tries: 1 },
        { ...tried(head!, failing), tries: 1 },
      ];
      expect(await webhooks().settleDeliveries(both, GIVE_UP_MS)).toHaveLength(1);
      expect(await webhooks().listDeliveries(one.id, ALL)).toMatchObject([{ state: 'delivered', tries: 2 }]);
      expect(await webhooks().settleDeliveries([], GIVE_UP_MS)).toEqual([]);
    });

    it('deliveries of an endpoint: newest first, in pages', async () => {
      const [one, two] = [await create(), await create()];
      for (const buyer of ['ann', 'bob', 'cid']) await reserve(buyer);
      await takeOver(one, two);
      const all = (await webhooks().listDeliveries(one.id, ALL))!;
      expect(all.map(({ endpointId }) => endpointId)).toEqual([one.id, one.id, one.id]);
      expect(all.map((each) => each.id)).toEqual(
        all
          .map((each) => each.id)
          .toSorted()
          .toReversed(),
      );
      const page = await webhooks().listDeliveries(one.id, { limit: 2, before: all[0]!.id });
      expect(page).toEqual(all.slice(1));
      expect(await webhooks().listDeliveries('12', ALL)).toBeNull();
    });

    it('a delivery that has ended is sent again, as if it were new', async () => {
      const one = await create();
      const ann = await reserve('ann');
      await takeOver(one);
      const [head] = await due(one);
      await webhooks().settleDeliveries([tried(head!, { ...failing, retryMs: GIVE_UP_MS + 1 })], GIVE_UP_MS);
      expect(await due(one)).toEqual([]);
      world().clock.advance(5 * DAY_MS);
      expect(await webhooks().redeliver(head!.id, ALICE, id())).toBe('due');
      const now = world().clock.now();
      const [again] = await due(one);
      expect(again).toMatchObject({ id: head!.id, state: 'pending', tries: 0, lastStatus: 500, nextAtMs: now });
      expect(again).toMatchObject({ eventId: head!.eventId, body: head!.body, doneAtMs: null });
      // It has all of its time again.
      await webhooks().settleDeliveries([tried(again!, failing)], GIVE_UP_MS);
      expect(await webhooks().listDeliveries(one.id, ALL)).toMatchObject([{ state: 'pending', tries: 1 }]);
      const [entry] = await ledger().audit({ subject: `webhook:${one.id}` }, ALL);
      expect(entry).toMatchObject({ action: 'webhook.redeliver', actor: 'admin:alice', origin: '10.0.0.7' });
      expect(JSON.parse(entry!.detail)).toEqual({ delivery: head!.id, event: `${ann.id}-1` });
    });

    it('one that is pending is hurried on, unless an older one of its order is pending', async () => {
      const one = await create();
      const ann = await reserve('ann');
      await move(ann.id, 'pay');
      await takeOver(one);
      const [head] = await due(one);
      await webhooks().settleDeliveries([tried(head!, failing)], GIVE_UP_MS);
      expect(await due(one)).toEqual([]);
      const [second] = (await webhooks().listDeliveries(one.id, ALL))!;
      expect(await webhooks().redeliver(second!.id, ALICE, id())).toBe('due');
      expect(await due(one)).toEqual([]);
      expect(await webhooks().redeliver(head!.id, ALICE, id())).toBe('due');
      expect(await due(one)).toMatchObject([{ id: head!.id, tries: 1 }]);
      // Both ended, then the older and the younger again: in their order.
      await webhooks().settleDeliveries([{ ...tried(head!), tries: 1 }], GIVE_UP_MS);
      await webhooks().settleDeliveries([tried(second!)], GIVE_UP_MS);
      await webhooks().redeliver(head!.id, ALICE, id());
      await webhooks().redeliver(second!.id, ALICE, id());
      expect(await dueEvents(one)).toEqual([`${ann.id}-1`]);
      await webhooks().settleDeliveries([tried({ ...head!, tries: 0 })], GIVE_UP_MS);
      expect(await dueEvents(one)).toEqual([`${ann.id}-2`]);
    });

    it('nothing is sent again to an endpoint that is gone or deleted, and nothing that nobody knows', async () => {
      const [one, two] = [await create(), await create()];
      await reserve('ann');
      await takeOver(one, two);
      const [first, second] = await due(one, two);
      await webhooks().settleDeliveries([tried(first!), tried(second!)], GIVE_UP_MS);
      await webhooks().endpointGone(one.id, 'gone', ALICE, id());
      await webhooks().deleteEndpoint(two.id, ALICE, id());
      expect(await webhooks().redeliver(first!.id, ALICE, id())).toBe('gone');
      expect(await webhooks().redeliver(second!.id, ALICE, id())).toBe('unknown');
      expect(await webhooks().redeliver('77', ALICE, id())).toBe('unknown');
    });

    it('tidies up: what is pending of one that is gone has failed, what was of a deleted one is removed', async () => {
      const [gone, deleted, kept] = [await create(), await create(), await create()];
      const ann = await reserve('ann');
      await move(ann.id, 'cancel');
      await takeOver(gone, deleted, kept);
      await webhooks().endpointGone(gone.id, 'it said 410', ALICE, id());
      await webhooks().deleteEndpoint(deleted.id, ALICE, id());
      expect(await webhooks().tidyWebhooks(KEPT_MS)).toBe(4);
      expect(await webhooks().tidyWebhooks(KEPT_MS)).toBe(0);
      expect(await webhooks().listDeliveries(gone.id, ALL)).toMatchObject([
        { state: 'failed', lastError: 'it said 410', nextAtMs: null, doneAtMs: T0 },
        { state: 'failed', lastError: 'it said 410', nextAtMs: null, doneAtMs: T0 },
      ]);
      expect(await webhooks().listDeliveries(kept.id, ALL)).toMatchObject([{ state: 'pending' }, { state: 'pending' }]);
      expect(await due(deleted)).toEqual([]);
    });

    it('forgets deliveries that ended long ago, and none that is pending', async () => {
      const one = await create();
      await reserve('ann');
      await reserve('bob');
      await takeOver(one);
      const [first, second] = await due(one);
      await webhooks().settleDeliveries([tried(first!), tried(second!, failing)], GIVE_UP_MS);
      world().clock.advance(KEPT_MS);
      expect(await webhooks().tidyWebhooks(KEPT_MS)).toBe(0);
      world().clock.advance(1);
      expect(await webhooks().tidyWebhooks(KEPT_MS)).toBe(1);
      expect(await webhooks().listDeliveries(one.id, ALL)).toMatchObject([{ id: second!.id, state: 'pending' }]);
      expect(await webhooks().tidyWebhooks(KEPT_MS)).toBe(0);
    });
  });
}
