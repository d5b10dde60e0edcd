import { afterEach, beforeEach, expect, it, vi } from 'vitest';

/** Runs the served script of the live board on a minimal fake page. */

class FakeElement {
  textContent = '';
  readonly style: Record<string, string> = {};
  readonly dataset: Record<string, string> = {};
  children: FakeElement[] = [];
  readonly #parts = new Map<string, FakeElement>();

  querySelector(selector: string): FakeElement {
    const part = this.#parts.get(selector) ?? new FakeElement();
    this.#parts.set(selector, part);
    return part;
  }

  get content(): { firstElementChild: { cloneNode(): FakeElement } } {
    return { firstElementChild: { cloneNode: () => new FakeElement() } };
  }

  createElement(): FakeElement {
    return new FakeElement();
  }

  append(...children: FakeElement[]): void {
    this.children.push(...children);
  }

  replaceChildren(...children: FakeElement[]): void {
    this.children = children;
  }

  setAttribute(): void {}
}

class FakeEvents {
  static readonly OPEN = 1;
  static readonly CLOSED = 2;
  static open: FakeEvents[] = [];
  readyState = 0;
  readonly url: string;
  readonly #listeners = new Map<string, (event: { data: string }) => void>();

  constructor(url: string) {
    this.url = url;
    FakeEvents.open.push(this);
  }

  addEventListener(name: string, listener: (event: { data: string }) => void): void {
    this.#listeners.set(name, listener);
  }

  tell(name: string, data: unknown = {}): void {
    if (name === 'open') this.readyState = FakeEvents.OPEN;
    this.#listeners.get(name)?.({ data: JSON.stringify(data) });
  }

  close(): void {
    this.readyState = 2;
    FakeEvents.open = FakeEvents.open.filter((one) => one !== this);
  }
}

let page: FakeElement;
let answers: (() => Promise<{ ok: boolean; status: number; json(): Promise<unknown> }>)[];
let looks: { run: () => void; ms: number }[];

const sale = (id: number, over: object = {}) => ({
  ...{ id: String(id), name: `Sale ${id}`, state: 'open', perBuyer: 1 },
  ...{ opensAt: '2026-11-11T00:00:00.000Z', closesAt: '2026-11-12T00:00:00.000Z' },
  items: [{ code: 'v', name: 'V', total: 5, free: 5, queued: 0, reserved: 0, sold: 0, blocked: 0 }],
  ...over,
});

const lists = (...sales: object[]) => {
  answers.push(async () => ({ ok: true, status: 200, json: async () => ({ data: sales, nextCursor: null }) }));
};
const link = (): string => page.querySelector('#link').textContent;
const names = (): string[] =>
  page.querySelector('#sales').children.map((element) => element.querySelector('h2').textContent);
const followed = (): string[] => FakeEvents.open.map(({ url }) => url);

/** Runs the page's next scheduled poll of the list. */
async function next(): Promise<number> {
  const { run, ms } = looks.shift()!;
  const before = looks.length;
  run();
  await vi.waitFor(() => expect(looks.length).toBeGreaterThan(before));
  return ms;
}

beforeEach(() => {
  page = new FakeElement();
  answers = [];
  looks = [];
  FakeEvents.open = [];
  vi.stubGlobal('document', page);
  vi.stubGlobal('EventSource', FakeEvents);
  vi.stubGlobal('fetch', () => answers.shift()!());
  const real = setTimeout;
  vi.stubGlobal('setTimeout', (run: () => void, ms: number) => {
    // Short timers belong to the test itself.
    if (ms < 1000) return real(run, ms);
    return looks.push({ run, ms });
  });
});
afterEach(() => vi.unstubAllGlobals());

let loads = 0;
/** Runs the script anew: a module is evaluated once for each address. */
const load = (): Promise<unknown> => import(`../../src/http/pages/board.js?load=${++loads}`);

it('says that the shop cannot be read (503), tries again, and shows the sales then', async () => {
  answers.push(async () => ({ ok: false, status: 503, json: async () => ({ code: 'unavailable' }) }));
  await load();
  expect([link(), names()]).toEqual(['the shop answered 503; trying again…', []]);
  answers.push(async () => Promise.reject(new TypeError('failed to fetch')));
  expect(await next()).toBe(2000);
  expect(link()).toBe('failed to fetch; trying again…');
  lists(sale(1));
  await next();
  expect([names(), followed()]).toEqual([['Sale 1'], ['v1/sales/1/events']]);
  FakeEvents.open[0]!.tell('open');
  expect(link()).toBe('live');
  // The list fails once, while the stream stays open.
  answers.push(async () => ({ ok: false, status: 503, json: async () => ({}) }));
  await next();
  expect(link()).toMatch(/503/);
  lists(sale(1));
  await next();
  expect(link()).toBe('live');
});

it('shows a sale that is made later, and follows the five newest that are not closed', async () => {
  lists();
  await load();
  expect(link()).toMatch(/^no sale yet/);
  lists(sale(1));
  expect(await next()).toBe(5000);
  expect([names(), followed()]).toEqual([['Sale 1'], ['v1/sales/1/events']]);
  const six = [7, 6, 5, 4, 3, 2].map((id) => sale(id, id === 6 ? { state: 'closed' } : {}));
  lists(...six, sale(1));
  await next();
  expect(names()).toEqual(['Sale 7', 'Sale 6', 'Sale 5', 'Sale 4', 'Sale 3', 'Sale 2', 'Sale 1']);
  expect(followed().sort()).toEqual([2, 3, 4, 5, 7].map((id) => `v1/sales/${id}/events`));
  // Sales that left the list leave the page.
  lists(sale(8), sale(7));
  await next();
  expect([names(), followed().sort()]).toEqual([
    ['Sale 8', 'Sale 7'],
    ['v1/sales/7/events', 'v1/sales/8/events'],
  ]);
});

it('follows a sale again whose stream was refused; the browser itself reconnects an interrupted one', async () => {
  lists(sale(1));
  await load();
  const [first] = FakeEvents.open;
  first!.tell('error');
  expect(link()).toMatch(/^connection lost/);
  lists(sale(1, { name: 'from the list' }));
  await next();
  expect(FakeEvents.open).toEqual([first]);
  first!.readyState = FakeEvents.CLOSED;
  first!.tell('error');
  lists(sale(1));
  await next();
  expect(FakeEvents.open).toHaveLength(1);
  expect(FakeEvents.open[0]).not.toBe(first);
});
