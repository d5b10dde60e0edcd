import { invariant, unavailable } from '../../base/errors.ts';
import { type EpochKeys, keyName, type Layout } from '../../base/redis/layout.ts';
import type { RedisLink } from '../../base/redis/link.ts';
import { bulk } from '../../base/redis/sent-script.ts';
import type { Runtime } from '../../base/runtime.ts';
import type { SaleSnapshot, SaleValues, SnapshotPage } from '../../model/snapshot.ts';
import { scriptNamed } from './scripts.ts';
import { dotted, Halls } from './seats.ts';

/**
 * Fields of one chunk, and chunks under way. Orders of other sales run in between and wait for no more than these: larger chunks
 * build a gate a little faster and make everybody else wait.
 */
const CHUNK_FIELDS = 250;
const CHUNKS_AT_ONCE = 2;
/** Bytes of one part of the seats. */
const SEAT_BYTES = 16_384;
/** How often others may change the list of epochs while we open the gate. */
const TRIES_MAX = 10;

export interface InstallOn {
  readonly link: RedisLink;
  readonly layout: Layout;
  readonly runtime: Runtime;
}

/**
 * Builds a gate from the ledger under its own key names, and opens it (or puts it in place, `shut`) in one step. Resolves with the
 * epoch in force: the snapshot's, or a higher one. Fails if the server lost part of what was built.
 */
export async function install(
  { link, layout, runtime }: InstallOn,
  snapshot: SaleSnapshot,
  shut: boolean,
): Promise<number> {
  const { saleId, epoch } = snapshot;
  const sale = layout.sale(saleId);
  const { items, holds, keys, house, seats, changes, stream } = sale.of(epoch);
  // Before the first key, so that every sale that has keys is in the list.
  await link.call('SADD', [layout.sales, saleId]);

  const builder = runtime.random.secret(8);
  const begun = await link.script(
    scriptNamed('build-begin'),
    [sale.gate, sale.epochs, items, holds, keys, house, seats, changes],
    [epoch, builder, sale.begin],
  );
  if (typeof begun === 'number') return begun;
  const [server] = begun as [string];

  const halls = new Halls(snapshot.items);
  const chunks = chunksOf(snapshot, halls, { items, holds, keys });
  /** Fields written so far. If fewer exist when the gate is opened, Redis has lost some. */
  const added = new Map([items, holds, keys].map((key) => [key, 0]));
  const head = bulk(String(epoch)) + bulk(builder);
  const write = ({ key, wire, parts }: Chunk, lane: number, number: number): Promise<number> =>
    new Promise((answered, failed) => {
      const place = bulk(String(lane)) + bulk(String(number));
      const wires =
        [sale.epochs, items, key].map(bulk).join('') + head + place + bulk(key === holds ? '1' : '0') + wire;
      const sentMs = runtime.clock.monotonic();
      const asker = { answered: (reply: unknown) => answered(reply as number), failed };
      link.send(scriptNamed('build-chunk'), 3, 8 + parts, wires, sentMs, asker);
    });
  // A refused chunk is the last: leaving the loop ends the generator for the other writers too, and build-open returns the reason.
  const writer = async (lane: number): Promise<void> => {
    let number = 0;
    for await (const chunk of chunks) {
      const fields = await write(chunk, lane, ++number);
      if (fields < 0) return;
      added.set(chunk.key, added.get(chunk.key)! + fields);
    }
  };
  await Promise.all(Array.from({ length: CHUNKS_AT_ONCE }, (_, at) => writer(at + 1)));
  const { text } = halls.written();
  for (let from = 0; from < text.length; from += SEAT_BYTES) {
    const part = text.slice(from, from + SEAT_BYTES);
    const script = scriptNamed('build-seats');
    if ((await link.script(script, [sale.epochs, items, seats], [epoch, builder, from, part])) === -1) break;
  }

  const values = valueArgs(snapshot);
  let lower: string[] = [];
  for (let tries = 0; tries < TRIES_MAX; tries++) {
    const open = await link.script(
      scriptNamed('build-open'),
      [
        ...[sale.gate, sale.epochs, items, holds, keys, seats, stream],
        ...lower.flatMap((each) => epochKeys(sale.of(each))),
      ],
      [epoch, builder, server, added.get(holds)!, added.get(keys)!, ...values, shut ? 1 : 0, text.length, ...lower],
    );
    if (typeof open === 'number') return open;
    const [what, ...more] = open as string[];
    if (what === 'opened') {
      // A process that removed the sale meanwhile may have taken it off the list after we had added it.
      await link.call('SADD', [layout.sales, saleId]);
      return epoch;
    }
    if (what === 'lost') break;
    lower = more;
  }
  throw unavailable(`the gate of sale ${saleId} was lost while it was being built`);
}

/** In the order of the keys of build-open.lua and remove.lua. */
export function epochKeys({ items, holds, keys, house, seats, changes, stream }: EpochKeys): string[] {
  return [items, holds, keys, house, seats, changes, stream];
}

/** In the order of the arguments of apply-sale.lua and build-open.lua. */
export function valueArgs(values: SaleValues): (string | number)[] {
  const { version, opensAtMs, closesAtMs, paused, closed, perBuyer, payWithinSeconds } = values;
  return [version, opensAtMs, closesAtMs, paused ? 1 : 0, closed ? 1 : 0, perBuyer, payWithinSeconds];
}

interface Chunk {
  readonly key: string;
  readonly wire: string;
  readonly parts: number;
}

/**
 * Chunks are made on demand, for whichever writer is free, while the next page is being read: no more of the sale than that is
 * in memory.
 */
async function* chunksOf(
  { saleId, items, content }: SaleSnapshot,
  halls: Halls,
  keys: { items: string; holds: string; keys: string },
): AsyncGenerator<Chunk> {
  const numbers = new Map(items.map(({ id }, at) => [id, at + 1]));
  const held = new Map<string, number>();
  for await (const page of content) {
    for (const { orderId, itemId, slots, seats, paid } of page.holds) {
      invariant(numbers.has(itemId), `order ${orderId} holds an item that sale ${saleId} does not have`);
      const hall = halls.of(itemId);
      invariant(
        (hall === undefined) === (seats === undefined),
        `order ${orderId} has seats of a counted item, or none`,
      );
      hall?.take(seats!, 'reserved');
      if (paid) hall?.sell(seats!);
      held.set(itemId, (held.get(itemId) ?? 0) + slots.length);
    }
    yield* chunked(keys.holds, holdFields(page, numbers));
    yield* chunked(keys.keys, keyFields(page));
  }
  const fields = new Map([
    ['n', String(items.length)],
    ['Q', '0'],
  ]);
  for (const { id, code, price, total, blocked, rev, onSale } of items) {
    const k = numbers.get(id)!;
    if (onSale === false) fields.set(`x:${k}`, '1');
    fields.set(`${fieldOf(halls.of(id) !== undefined, onSale !== false)}:${code}`, String(k));
    fields.set(`s:${k}`, `${id} ${price.amount} ${price.currency} ${code}`);
    for (const [name, count] of Object.entries({ t: total, b: blocked, r: rev, h: held.get(id) ?? 0, q: 0, o: 0 })) {
      fields.set(`${name}:${k}`, String(count));
    }
  }
  yield* chunked(keys.items, new Map([...fields, ...halls.written().fields]));
}

/** A buyer's orders of one page are joined: a chunk names no buyer twice. */
function holdFields({ holds }: SnapshotPage, numbers: ReadonlyMap<string, number>): Map<string, string> {
  const buyers = new Map<string, string>();
  for (const { orderId, itemId, buyer, slots, seats } of holds) {
    const sits = seats === undefined ? '' : `,${dotted(seats)}`;
    const hold = `${orderId},${numbers.get(itemId)},s,${slots.join('.')}${sits}`;
    const mine = buyers.get(buyer);
    buyers.set(buyer, mine === undefined ? hold : `${mine};${hold}`);
  }
  return buyers;
}

function keyFields({ keys }: SnapshotPage): Map<string, string> {
  return new Map(
    keys.map(({ buyer, key, orderId, boundAtMs, fingerprint }) => {
      return [keyName(buyer, key), `${orderId} ${boundAtMs} ${fingerprint}`];
    }),
  );
}

function* chunked(key: string, fields: ReadonlyMap<string, string>): Generator<Chunk> {
  let wire = '';
  let parts = 0;
  for (const [field, value] of fields) {
    wire += bulk(field) + bulk(value);
    parts += 2;
    if (parts < 2 * CHUNK_FIELDS) continue;
    yield { key, wire, parts };
    wire = '';
    parts = 0;
  }
  if (parts > 0) yield { key, wire, parts };
}

/**
 * Items by code are kept under three names. admit.lua, also that of a version before seats and before items could be off sale, must
 * not find any but counted ones that are on sale.
 */
function fieldOf(isSeated: boolean, isOnSale: boolean): 'C' | 'X' | 'c' {
  if (isSeated) return 'C';
  return isOnSale ? 'c' : 'X';
}
