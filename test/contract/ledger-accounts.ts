import { describe, expect, it } from 'vitest';
import type { NewAccount } from '../../src/ledger/port.ts';
import type { LedgerUnderTest } from './ledger.ts';
import { T0 } from './manual.ts';

const ALL = { limit: 100, before: null };

/** The contract of src/ledger/port/accounts.ts. */
export function accountContract({ world }: { world(): LedgerUnderTest }): void {
  describe('accounts', () => {
    // As large as real ids: a JavaScript number cannot represent them.
    let lastId = 2n ** 58n;
    const id = (): string => String(++lastId);
    const accounts = () => world().ledger.accounts;

    function account(over: Partial<NewAccount> = {}): NewAccount {
      const own = { username: 'ann', email: 'ann@example.com', passwordHash: '$scrypt$ln=1,r=1,p=1$c2FsdA$aGFzaA' };
      return { id: id(), ...own, auditId: id(), origin: '192.0.2.8', ...over };
    }

    const outcome = async (over: Partial<NewAccount> = {}): Promise<string> =>
      (await accounts().createAccount(account(over))).outcome;

    const created = async (): Promise<unknown[]> =>
      (await world().ledger.audit({}, ALL)).filter(({ action }) => action === 'account.create');

    it('are found by name and by id, with the audit row that they were stored with, also after a crash', async () => {
      const ann = account({ username: 'Zoë 界🎟', email: 'Zoë.Q@例え.example' });
      const subject = `account:${ann.id}`;
      const stored = { id: ann.id, subject, username: ann.username, email: ann.email };
      const record = { ...stored, createdAtMs: T0, updatedAtMs: T0 };
      expect(await accounts().createAccount(ann)).toEqual({ outcome: 'ok', account: record });
      await world().crash();
      expect(await accounts().accountById(ann.id)).toEqual(record);
      expect(await accounts().accountByName(ann.username)).toEqual({ ...record, passwordHash: ann.passwordHash });
      expect([await accounts().accountByName('nobody'), await accounts().accountById('1')]).toEqual([null, null]);
      const [row, ...more] = await world().ledger.audit({ subject }, ALL);
      expect(more).toEqual([]);
      expect({ ...row, detail: JSON.parse(row!.detail) }).toEqual({
        ...{ id: ann.auditId, atMs: T0, actor: `buyer:${subject}`, origin: '192.0.2.8', action: 'account.create' },
        ...{ subject, detail: { username: ann.username } },
      });
    });

    it('a name or an address that is taken is named, the name first, and leaves nothing', async () => {
      expect(await outcome()).toBe('ok');
      expect(await outcome()).toBe('username_taken');
      expect(await outcome({ email: 'other@example.com' })).toBe('username_taken');
      expect(await outcome({ username: 'ben' })).toBe('email_taken');
      expect(await accounts().accountByName('ben')).toBeNull();
      expect(await created()).toHaveLength(1);
    });

    it('names and addresses are compared bytewise: case, accents and blanks inside count', async () => {
      for (const [at, username] of ['ann', 'Ann', 'ANN', 'änn', 'an n', 'ann.'].entries()) {
        expect([username, await outcome({ username, email: `${at}@example.com` })]).toEqual([username, 'ok']);
      }
      for (const [at, email] of ['ann@example.com', 'Ann@example.com', 'änn@example.com'].entries()) {
        expect([email, await outcome({ username: `b${at}`, email })]).toEqual([email, 'ok']);
      }
      expect((await accounts().accountByName('Ann'))?.email).toBe('1@example.com');
    });

    it('the longest that may be', async () => {
      const [username, email] = ['🎟'.repeat(50), `${'🎟'.repeat(126)}@${'界'.repeat(127)}`];
      const longest = account({ username, email, passwordHash: 'x'.repeat(255) });
      expect(await accounts().createAccount(longest)).toMatchObject({ outcome: 'ok' });
      expect(await accounts().accountByName(username)).toMatchObject({ username, email });
    });

    it.each([
      ['name', 'username_taken', (at: number) => ({ email: `${at}@example.com` })],
      ['address', 'email_taken', (at: number) => ({ username: `user-${at}` })],
    ] as const)('of ten that race for a %s exactly one wins, and the others are told %s', async (_, code, own) => {
      const racing = await Promise.all(Array.from({ length: 10 }, (_each, at) => outcome(own(at))));
      expect(racing.toSorted()).toEqual([...Array(9).fill(code), 'ok'].toSorted());
      expect(await created()).toHaveLength(1);
    });

    it('crosswise: each takes the name of one and the address of the other, and both get an answer', async () => {
      const [a, b] = [
        { username: 'a', email: 'a@example.com' },
        { username: 'b', email: 'b@example.com' },
      ];
      const racing = [a, b, { ...a, email: b.email }, { ...b, email: a.email }];
      const outcomes = await Promise.all(racing.map(outcome));
      const won = outcomes.filter((one) => one === 'ok').length;
      expect(won).toBeGreaterThan(0);
      expect(await created()).toHaveLength(won);
    });
  });
}
