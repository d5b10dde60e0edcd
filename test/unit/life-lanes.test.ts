import { beforeEach, describe, expect, it } from 'vitest';
import type { PaymentAttempt } from '../../src/model/payment.ts';
import { Lanes } from '../../src/orders/life/lanes.ts';
import { type CheckedProvider, ProviderWatch, SILENT_MS } from '../../src/orders/life/provider.ts';
import type { ProviderState } from '../../src/payments/port.ts';
import { type ManualRuntime, manualRuntime, settled } from '../contract/manual.ts';

const HUNG = 'hung';
const FINE = 'fine';

let runtime: ManualRuntime;
let watch: ProviderWatch;
let hung: CheckedProvider;
let answers: ((state: ProviderState) => void)[];
let ends: Map<string, () => void>;
let done: string[];
let lanes: Lanes<PaymentAttempt>;

function attempt(provider: string, id: number, state: PaymentAttempt['state'] = 'open'): PaymentAttempt {
  return { id: String(id), provider, state } as PaymentAttempt;
}

beforeEach(() => {
  runtime = manualRuntime();
  watch = new ProviderWatch(runtime);
  answers = [];
  hung = watch.over({
    name: HUNG,
    capture: () => new Promise(() => undefined),
    query: () => new Promise((resolve) => answers.push(resolve)),
    void: () => Promise.reject(new Error('down')),
    refund: () => Promise.resolve({ reference: null }),
  });
  ends = new Map();
  done = [];
  lanes = new Lanes(watch, async ({ id, provider }) => {
    if (provider === HUNG) {
      void hung.query(id);
      // Whoever asks waits for a bounded time only.
      await new Promise<void>((resolve) => ends.set(id, resolve));
    }
    done.push(id);
  });
});

const taken = (provider: string, ids: number[], state?: PaymentAttempt['state']) =>
  ids.map((id) => lanes.take(attempt(provider, id, state)));
const upTo = (count: number, from = 0) => Array.from({ length: count }, (_, at) => from + at);

describe('a lane', () => {
  it('P10: of a provider that hangs holds up no other', async () => {
    taken(HUNG, upTo(300));
    taken(FINE, upTo(5, 1000));
    await settled();
    expect(done).toEqual(['1000', '1001', '1002', '1003', '1004']);
    expect(ends.size, 'are under way').toBe(16);
  });

  it('takes so many and no more, and none twice', async () => {
    expect(new Set(taken(HUNG, upTo(256)))).toEqual(new Set(['taken']));
    expect(taken(HUNG, [256, 257])).toEqual(['full', 'full']);
    expect(taken(HUNG, upTo(256))).toEqual(Array(256).fill('taken'));
    ends.get('3')!();
    await settled();
    expect(done).toEqual(['3']);
    expect(ends.has('16'), 'the next one').toBe(true);
    expect(taken(HUNG, [256, 257])).toEqual(['taken', 'full']);
  });

  it('P10: of a silent provider asks about one at a time; an answer, also a failure, has it go on', async () => {
    taken(HUNG, upTo(100));
    runtime.clock.advance(SILENT_MS - 1);
    expect(taken(HUNG, [100])).toEqual(['taken']);
    runtime.clock.advance(1);
    expect(taken(HUNG, [101, 102])).toEqual(['silent', 'silent']);
    // Those that waited are left to the ledger.
    for (const id of upTo(16)) ends.get(String(id))!();
    await settled();
    expect(ends.size).toBe(16);
    expect(taken(HUNG, [101, 102, 103])).toEqual(['taken', 'silent', 'silent']);
    expect(taken(HUNG, [104], 'late'), 'looks for goods first').toEqual(['taken']);
    answers.at(-2)!({ state: 'unknown' });
    await settled();
    expect(taken(HUNG, [102, 103])).toEqual(['taken', 'taken']);
    runtime.clock.advance(SILENT_MS);
    expect(watch.isSilent(HUNG)).toBe(true);
    await hung.void('1').catch(() => undefined);
    expect(watch.isSilent(HUNG)).toBe(false);
  });

  it('a capture that takes its time says nothing', () => {
    void hung.capture({} as never);
    runtime.clock.advance(2 * SILENT_MS);
    expect(watch.isSilent(HUNG)).toBe(false);
  });

  it('is idle when what is under way has ended; what is cleared does not begin', async () => {
    taken(HUNG, upTo(20));
    lanes.clear();
    let idle = false;
    const waited = lanes.idle().then(() => {
      idle = true;
    });
    for (const id of upTo(16)) {
      expect(idle).toBe(false);
      ends.get(String(id))!();
      await settled();
    }
    await waited;
    expect(done).toHaveLength(16);
    expect(ends.size).toBe(16);
  });
});
