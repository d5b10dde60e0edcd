// The live board: reads the sales once, then follows the newest few by server-sent events.
const FOLLOWED_MAX = 5; // a browser opens six connections to a host; one is left for everything else

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

function show(sale) {
  const element = clone('sale');
  element.querySelector('h2').textContent = sale.name;
  element.querySelector('.window').textContent =
    `${time(sale.opensAt)} – ${time(sale.closesAt)} · at most ${sale.perBuyer} for each buyer · sale ${sale.id}`;
  showState(element, sale.state);
  const items = new Map();
  for (const item of sale.items) {
    const row = clone('item');
    showItem(row, item);
    items.set(item.code, row);
    element.querySelector('.items').append(row);
  }
  list.append(element);
  return { element, items };
}

function follow(sale, { element, items }) {
  const events = new EventSource(`v1/sales/${sale.id}/events`);
  events.addEventListener('open', () => {
    link.textContent = 'live';
  });
  events.addEventListener('error', () => {
    link.textContent = 'connection lost; trying again…';
  });
  events.addEventListener('stock', ({ data }) => {
    const item = JSON.parse(data);
    showItem(items.get(item.code), item);
  });
  events.addEventListener('state', ({ data }) => showState(element, JSON.parse(data).state));
}

const answer = await fetch('v1/sales?limit=20');
const { data } = await answer.json();
if (data.length === 0) link.textContent = 'no sale yet: create one with POST /v1/sales';
data.forEach((sale, index) => {
  const shown = show(sale);
  if (index < FOLLOWED_MAX && sale.state !== 'closed') follow(sale, shown);
});
