// The live board: polls the list of sales and follows the newest few by server-sent events.
const SHOWN_MAX = 20;
const FOLLOWED_MAX = 5; // a browser opens at most six connections to a host; one is left for everything else
const LOOK_EVERY_MS = 5000;
const RETRY_MS = 2000;

const list = document.querySelector('#sales');
const link = document.querySelector('#link');

const clone = (id) => document.querySelector(`#${id}`).content.firstElementChild.cloneNode(true);
const time = (iso) => new Date(iso).toLocaleString();

function showItem(element, item) {
  element.querySelector('h3').textContent = `${item.name} (${item.code})`;
  for (const part of ['sold', 'reserved', 'queued']) {
    element.querySelector(`.bar .${part}`).style.flexBasis = item.total ? `${(100 * item[part]) / item.total}%` : '0';
  }
  element.querySelector('.bar').setAttribute('aria-label', `${item.free} of ${item.total} free`);
  const counts = element.querySelector('.counts');
  counts.replaceChildren();
  for (const part of ['free', 'queued', 'reserved', 'sold', 'blocked']) {
    const number = document.createElement('b');
    number.textContent = item[part].toLocaleString();
    counts.append(number, ` ${part} · `);
  }
  counts.append(`${item.total.toLocaleString()} in all`);
}

function showState(element, state) {
  const badge = element.querySelector('.state');
  badge.textContent = state.replace('_', ' ');
  badge.dataset.state = state;
}

/** What is on the page, by sale id. */
const shown = new Map();

function add(sale) {
  const entry = { element: clone('sale'), items: new Map(), events: null };
  shown.set(sale.id, entry);
  return entry;
}

/** Items can be added to a sale while it is shown. */
function rowOf({ element, items }, code) {
  let row = items.get(code);
  if (row === undefined) {
    row = clone('item');
    items.set(code, row);
    element.querySelector('.items').append(row);
  }
  return row;
}

function show(entry, sale) {
  const { element } = entry;
  element.querySelector('h2').textContent = sale.name;
  element.querySelector('.window').textContent =
    `${time(sale.opensAt)} – ${time(sale.closesAt)} · at most ${sale.perBuyer} for each buyer · sale ${sale.id}`;
  showState(element, sale.state);
  for (const item of sale.items) showItem(rowOf(entry, item.code), item);
}

function follow(id, entry) {
  const events = new EventSource(`v1/sales/${id}/events`);
  entry.events = events;
  events.addEventListener('open', () => {
    link.textContent = 'live';
  });
  events.addEventListener('error', () => {
    link.textContent = 'connection lost; trying again…';
    // Refused rather than interrupted: the browser does not reconnect by itself, but the next poll does.
    if (events.readyState === EventSource.CLOSED) unfollow(entry);
  });
  events.addEventListener('stock', ({ data }) => {
    const item = JSON.parse(data);
    showItem(rowOf(entry, item.code), item);
  });
  events.addEventListener('state', ({ data }) => showState(entry.element, JSON.parse(data).state));
}

function unfollow(entry) {
  entry.events?.close();
  entry.events = null;
}

/** Shows the sales, newest first. A followed sale keeps what its events said, which is newer than the list. */
function update(sales) {
  const followed = new Set(sales.filter(({ state }) => state !== 'closed').slice(0, FOLLOWED_MAX));
  for (const sale of sales) {
    const entry = shown.get(sale.id) ?? add(sale);
    if (entry.events === null || !followed.has(sale)) show(entry, sale);
    if (!followed.has(sale)) unfollow(entry);
    else if (entry.events === null) follow(sale.id, entry);
  }
  const ids = new Set(sales.map(({ id }) => id));
  for (const [id, entry] of shown) {
    if (ids.has(id)) continue;
    unfollow(entry);
    shown.delete(id);
  }
  const elements = sales.map(({ id }) => shown.get(id).element);
  const isSame = elements.length === list.children.length && elements.every((one, at) => one === list.children[at]);
  if (!isSame) list.replaceChildren(...elements);
}

/** Never throws: if the shop cannot be read, it tries again. */
async function look() {
  try {
    const answer = await fetch(`v1/sales?limit=${SHOWN_MAX}`);
    if (!answer.ok) throw new Error(`the shop answered ${answer.status}`);
    const { data } = await answer.json();
    update(data);
    const streams = [...shown.values()].flatMap(({ events }) => events ?? []);
    if (data.length === 0) link.textContent = 'no sale yet: create one with POST /v1/sales';
    else if (streams.length === 0) link.textContent = 'no sale is open';
    else if (streams.every(({ readyState }) => readyState === EventSource.OPEN)) link.textContent = 'live';
    setTimeout(look, LOOK_EVERY_MS);
  } catch (error) {
    link.textContent = `${error.message}; trying again…`;
    setTimeout(look, RETRY_MS);
  }
}

await look();
