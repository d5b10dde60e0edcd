import { type AccountRecord, accountSubject } from '../../model/account.ts';
import { actor } from '../../model/actor.ts';
import type { AccountCreated, AccountWithHash, NewAccount } from '../port/accounts.ts';
import { auditStep } from './audit.ts';
import { CLOCK, nowOf, query, type Row, type Work, Writes } from './work.ts';

const COLUMNS = ['id', 'subject', 'username', 'email', 'password_hash', 'created_at', 'updated_at'];
const SELECT = `SELECT ${COLUMNS.join(', ')} FROM users`;

export function* createAccount(account: NewAccount): Work<AccountCreated> {
  const { id, username, email, passwordHash, auditId, origin } = account;
  const [clock, named, mailed] = yield [
    CLOCK,
    query('SELECT id FROM users WHERE username = ?', username),
    query('SELECT id FROM users WHERE email = ?', email),
  ];
  if (named!.rows.length > 0) return { outcome: 'username_taken' };
  if (mailed!.rows.length > 0) return { outcome: 'email_taken' };
  const nowMs = nowOf(clock);
  const subject = accountSubject(id);
  const writes = new Writes();
  // Another registration may have taken the name or the address since. Then no row is inserted, and the work starts again: it finds
  // out which of the two is taken.
  writes.addRows({
    do: 'insert',
    table: 'users',
    columns: COLUMNS,
    rows: [[BigInt(id), subject, username, email, passwordHash, nowMs, nowMs]],
    leavePresent: true,
  });
  // Without the e-mail address: audit rows are kept for ever.
  const by = actor('buyer', subject, origin);
  writes.addRows(auditStep([{ auditId, by, action: 'account.create', subject, detail: { username } }], nowMs));
  yield* writes.last();
  return { outcome: 'ok', account: { id, subject, username, email, createdAtMs: nowMs, updatedAtMs: nowMs } };
}

export function* accountByName(username: string): Work<AccountWithHash | null> {
  const [found] = yield [query(`${SELECT} WHERE username = ?`, username)];
  const [row] = found!.rows;
  return row === undefined ? null : { ...accountOfRow(row), passwordHash: row.password_hash as string };
}

export function* accountById(accountId: string): Work<AccountRecord | null> {
  const [found] = yield [query(`${SELECT} WHERE id = ?`, BigInt(accountId))];
  return found!.rows.map(accountOfRow)[0] ?? null;
}

function accountOfRow(row: Row): AccountRecord {
  return {
    id: row.id as string,
    subject: row.subject as string,
    username: row.username as string,
    email: row.email as string,
    createdAtMs: Number(row.created_at),
    updatedAtMs: Number(row.updated_at),
  };
}
