import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Config } from '../base/config.ts';
import { messageOf, TerminalError } from '../base/errors.ts';
import type { Runtime } from '../base/runtime.ts';
import type { Shop } from '../engine/shop.ts';
import type { HttpOptions } from '../http/context.ts';

type Keys = Pick<HttpOptions, 'adminKeys' | 'authSecrets'>;

const KEYS_FILE = 'demo-keys.json';
const STOCK = 100;
const OPEN_MS = 30 * 24 * 3600 * 1000;

/** Random, kept in the data folder so that tokens outlive a restart, readable by nobody else. Given keys win. */
export function demoKeys(config: Config, { random }: Runtime): Keys {
  const file = join(config.data, KEYS_FILE);
  let kept: { adminKey: string; authSecret: string };
  try {
    kept = JSON.parse(readFileSync(file, 'utf8')) as typeof kept;
  } catch {
    kept = { adminKey: random.secret(18), authSecret: random.secret(32) };
    try {
      mkdirSync(config.data, { recursive: true, mode: 0o700 });
      writeFileSync(file, `${JSON.stringify(kept, null, 2)}\n`, { mode: 0o600 });
    } catch (error) {
      throw new TerminalError('bad_config', `the demo keys cannot be kept in ${config.data} (${messageOf(error)})`);
    }
  }
  return {
    adminKeys: config.adminKeys ?? [{ name: 'demo', key: kept.adminKey }],
    authSecrets: config.authSecrets ?? [kept.authSecret],
  };
}

/** A new open sale with stock at every start. */
export async function demoSale(shop: Shop): Promise<string> {
  const nowMs = shop.runtime.clock.now();
  const change = await shop.createSale(
    {
      name: 'Double Eleven vouchers',
      opensAtMs: nowMs,
      closesAtMs: nowMs + OPEN_MS,
      perBuyer: 1,
      payWithinSeconds: 900,
      items: [{ code: 'voucher-100', name: '100 off', price: { amount: 8000, currency: 'CNY' }, stock: STOCK }],
    },
    { actor: 'demo', keyed: null },
  );
  if (change.outcome !== 'changed')
    throw new TerminalError('internal', `the demo sale was not made: ${change.outcome}`);
  return change.sale.id;
}

export function demoWords(url: string, { adminKeys }: Keys, saleId: string): string {
  return `
  Doorbuster is open (demo: loopback only, keys made up and kept in the data folder)

    Watch    ${url}/
    API      ${url}/docs
    Sale     ${saleId}: ${STOCK} vouchers, one for each buyer
    Admin    ${adminKeys[0]!.key}

  Send 5 000 buyers from another terminal (again as often as you like: it tops the sale up to ${STOCK} first):

    npx doorbuster crowd --url ${url} --sale ${saleId} --buyers 5000 --top-up ${STOCK} --admin-key ${adminKeys[0]!.key}

  Ctrl-C ends it.
`;
}
