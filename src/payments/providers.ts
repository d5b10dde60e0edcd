import { nameFault, textFault } from '../model/text.ts';

const NAME_MAX = 32;
/** As wide as the ledger's column for it (MariaDB). */
const NAME_BYTES_MAX = 64;
const CALLS = ['capture', 'query', 'void', 'refund'] as const;

/**
 * What is wrong with the payment providers that a shop is given, or null. A payment is stored with its provider's name: two
 * providers under one name, or one under a name of ours, would take money that nobody could give back.
 */
export function providersFault(providers: unknown, sandbox: boolean): string | null {
  if (!Array.isArray(providers)) return 'providers must be an array';
  const names = new Set(sandbox ? ['sandbox'] : []);
  for (const [at, provider] of providers.entries()) {
    const { name } = (provider ?? {}) as { name?: unknown };
    const fault = typeof name === 'string' ? nameFaultOf(name) : 'must be a text';
    if (fault !== null) return `providers[${at}].name ${fault}`;
    if (name === 'confirm') return `providers[${at}].name must not be confirm: that is money that the shop took itself`;
    if (names.has(name as string)) return `providers[${at}].name is taken: there is another provider ${name}`;
    names.add(name as string);
    const missing = CALLS.find((call) => typeof provider[call] !== 'function');
    if (missing !== undefined) return `providers[${at}] (${name}) must have a function ${missing}`;
  }
  return null;
}

function nameFaultOf(name: string): string | null {
  return nameFault(name, NAME_MAX) ?? textFault(name, NAME_BYTES_MAX);
}
