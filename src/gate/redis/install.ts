import { invariant, unavailable } from '../../base/errors.ts';
import { bulk, type RedisLink } from '../../base/redis/link.ts';
import type { Runtime } from '../../base/runtime.ts';
import type { SaleSnapshot, SaleValues } from '../../model/snapshot.ts';
import { keyName, type Layout } from './layout.ts';
import { scriptNamed } from './scripts.ts';

/**
 * Fields of one chunk, and chunks under way: orders of other sales come in between, and wait for no more than these. Larger
 * ones build a gate a little faster and keep everybody else waiting.
 */
const CHUNK_FIELDS = 250;
const CHUNKS_AT_ONCE = 2;
/** Holds that are read in one turn of the event loop: some tenths of a millisecond. */
const SLICE = 500;
/** How often others may change the list of epochs under our hands. */
const TRIES_MAX = 10;

export interface InstallOn {
  readonly link: RedisLink;
  readonly layout: Layout;
  readonly runtime: Runtime;
}

/**
 * Builds a gate from the ledger under key names of its own and opens it (or puts it in place, `shut`) in one step. Resolves with the epoch in force: the
 * snapshot's, or a higher one that was there or came meanwhile. Fails if the server forgot what was being built.
 */
export async function install(
  { link, layout, runtime }: InstallOn,
  snapshot: SaleSnapshot,
  shut: boolean,
): Promise<number> {
  const { saleId, epoch } = snapshot;
  const sale = layout.sale(saleId);
  const { items, holds, keys, house, stream } = sale.of(epoch);
  // Before its first key, so that no sale has keys that nobody finds.
  await link.call('SADD', [layout.sales, saleId]);

  const builder = runtime.random.secret(8);
  const begun = await link.script(
    scriptNamed('build-begin'),
    [sale.gate, sale.epochs, items, holds, keys, house],
    [epoch, builder],
  );
  if (typeof begun === 'number') return begun;
  const [run] = begun as [string];

  const { fields, buyers, boundKeys } = await contentOf(snapshot, runtime);
  const chunks = chunksOf(
    new Map([
      [items, fields],
      [holds, buyers],
      [keys, boundKeys],
    ]),
  );
  const head = bulk(String(epoch)) + bulk(builder);
  const write = ({ key, wire, parts }: Chunk): Promise<unknown> =>
    new Promise((answered, failed) => {
      const keysWire = bulk(sale.epochs) + bulk(items) + bulk(key);
      const sentMs = runtime.clock.monotonic();
      link.send(scriptNamed('build-chunk'), 3, 5 + parts, keysWire + head + wire, sentMs, { answered, failed });
    });
  // One that is refused is the last: leaving the loop ends the chunks for the other writers too, and opening tells why.
  const writer = async (): Promise<void> => {
    for (const chunk of chunks) if ((await write(chunk)) !== 1) return;
  };
  await Promise.all(Array.from({ length: CHUNKS_AT_ONCE }, writer));

  const values = valueArgs(snapshot);
  let lower: string[] = [];
  for (let tries = 0; tries < TRIES_MAX; tries++) {
    const open = await link.script(
      scriptNamed('build-open'),
      [
        ...[sale.gate, sale.epochs, items, holds, keys, stream],
        ...lower.map((each) => sale.of(each)).flatMap((of) => [of.items, of.holds, of.keys, of.house, of.stream]),
      ],
      [epoch, builder, run, buyers.size, boundKeys.size, ...values, shut ? 1 : 0, ...lower],
    );
    if (typeof open === 'number') return open;
    const [what, ...more] = open as string[];
    if (what === 'opened') {
      // Whoever took the sale out meanwhile may have struck it off the list after we had put it there.
      await link.call('SADD', [layout.sales, saleId]);
      return epoch;
    }
    if (what === 'lost') break;
    lower = more;
  }
  throw unavailable(`the gate of sale ${saleId} was lost while it was being built`);
}

/** In the order in which apply-sale.lua and build-open.lua take them. */
export function valueArgs(values: SaleValues): (string | number)[] {
  const { version, opensAtMs, closesAtMs, paused, closed, perBuyer, payWithinSeconds } = values;
  return [version, opensAtMs, closesAtMs, paused ? 1 : 0, closed ? 1 : 0, perBuyer, payWithinSeconds];
}

interface Content {
  /** What `items`, `holds` and `keys` are to hold. */
  readonly fields: Map<string, string>;
  readonly buyers: Map<string, string>;
  readonly boundKeys: Map<string, string>;
}

/** Takes its time: a process that builds a gate serves the orders of other sales meanwhile. */
async function contentOf({ saleId, items, holds, keys }: SaleSnapshot, { timers }: Runtime): Promise<Content> {
  const nextTurn = (): Promise<void> => new Promise((resolve) => timers.nextTurn(resolve));
  const numbers = new Map(items.map(({ id }, at) => [id, at + 1]));
  const held = new Map<number, number>();
  const buyers = new Map<string, string>();
  for (const [at, { orderId, itemId, buyer, slots }] of holds.entries()) {
    if (at % SLICE === SLICE - 1) await nextTurn();
    const number = numbers.get(itemId);
    invariant(number !== undefined, `order ${orderId} holds an item that sale ${saleId} does not have`);
    held.set(number, (held.get(number) ?? 0) + slots.length);
    const hold = `${orderId},${number},s,${slots.join('.')}`;
    const mine = buyers.get(buyer);
    buyers.set(buyer, mine === undefined ? hold : `${mine};${hold}`);
  }
  const boundKeys = new Map<string, string>();
  for (const [at, { buyer, key, orderId, boundAtMs, fingerprint }] of keys.entries()) {
    if (at % SLICE === SLICE - 1) await nextTurn();
    boundKeys.set(keyName(buyer, key), `${orderId} ${boundAtMs} ${fingerprint}`);
  }
  const fields = new Map([
    ['n', String(items.length)],
    ['Q', '0'],
  ]);
  for (const { id, code, price, total, blocked, rev } of items) {
    const k = numbers.get(id)!;
    fields.set(`c:${code}`, String(k));
    fields.set(`s:${k}`, `${id} ${price.amount} ${price.currency} ${code}`);
    for (const [name, count] of Object.entries({ t: total, b: blocked, r: rev, h: held.get(k) ?? 0, q: 0, o: 0 })) {
      fields.set(`${name}:${k}`, String(count));
    }
  }
  return { fields, buyers, boundKeys };
}

interface Chunk {
  readonly key: string;
  readonly wire: string;
  readonly parts: number;
}

/** Made when they are asked for, by whichever writer is free. */
function* chunksOf(hashes: ReadonlyMap<string, ReadonlyMap<string, string>>): Generator<Chunk> {
  for (const [key, fields] of hashes) {
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
}
