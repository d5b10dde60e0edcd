import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { LEDGER_FILE } from '../../src/ledger/drivers/sqlite/folder.ts';
import type { Finding } from '../../src/model/finding.ts';
import { until } from '../support/fault-wait.ts';
import { attemptsOf, openSale, order, pay, untilStatus } from '../support/life-http.ts';
import { type ServedShop, serveShop } from '../support/life-served.ts';
import { expectProblem } from '../support/openapi-wire.ts';
import { ADMIN_KEY, cleanUp, run } from '../support/server.ts';

/** `check`: unsettled payments. Stuck stock is tested in test/faults/life-servers.test.ts. */
let served: ServedShop;

beforeAll(async () => {
  served = await serveShop({ answerWithinMs: 100 });
});

afterAll(async () => {
  await served.close();
  await cleanUp();
});

async function checked(saleId?: string): Promise<{ status: string; findings: Finding[] }> {
  const { status, body } = await served.call('POST', '/v1/ops/consistency/check', {
    admin: true,
    ...(saleId === undefined ? {} : { body: { saleId } }),
  });
  expect(status).toBe(200);
  return body;
}

/** As after twenty minutes of attempts: the last one is due. */
function triedElevenTimes(attemptId: string): void {
  const db = new DatabaseSync(join(served.data, LEDGER_FILE));
  db.prepare('UPDATE payments SET tries = 11, next_at = 1 WHERE id = ?').run(BigInt(attemptId));
  db.close();
}

const check = (...args: string[]) => run(['check', ...args], { DOORBUSTER_ADMIN_KEY: ADMIN_KEY });

describe('check', () => {
  it('a payment that its provider does not settle is a finding after twelve tries, and none when it is settled', async () => {
    const saleId = await openSale(served);
    const other = await openSale(served);
    const one = await order(served, saleId, 'alice');
    expect((await pay(served, one, 'pending', { method: 'bank' })).status).toBe(202);
    const [attempt] = attemptsOf(served, one);
    expect(await checked()).toMatchObject({
      status: 'consistent',
      checks: ['releases', 'payments', 'counts'],
      findings: [],
      more: false,
      next: null,
    });

    served.bank.mood = 'down';
    triedElevenTimes(attempt!);
    const { findings } = await until('it is found', 5000, async () => {
      const report = await checked();
      return report.status === 'inconsistent' && report;
    });
    expect(findings).toEqual([
      {
        id: `payment-${attempt}`,
        check: 'payments',
        saleId,
        subject: `order:${one.id}`,
        expected: 'to know whether 8000 CNY (smallest unit) came',
        actual: 'nobody knows; the order is reserved and its units are held',
        cause: expect.stringMatching(/^12 tries at bank, the last one: ./),
        repair: expect.stringContaining(attempt!),
      },
    ]);
    expect((await checked(saleId)).findings).toEqual(findings);
    expect(await checked(other)).toMatchObject({
      status: 'consistent',
      checks: ['releases', 'payments'],
      findings: [],
    });
    expect((await served.call('GET', '/v1/ops/consistency', { admin: true })).body.findings).toEqual(findings);
    expect(await served.shop.check(saleId)).toMatchObject({ findings });

    const found = await check('--url', served.url);
    expect(found).toMatchObject({ code: 1, stderr: '' });
    expect(found.stdout).toContain(`✗ payments: order:${one.id} of sale ${saleId}`);
    expect(found.stdout).toContain('1 found (checked releases, payments, counts)');
    expect(JSON.parse((await check('--url', served.url, '--json')).stdout)).toMatchObject({ findings });
    expect(await check('--url', served.url, '--sale', other)).toMatchObject({
      code: 0,
      stdout: 'no stuck stock, no unsettled payments (checked releases, payments)\n',
    });

    served.bank.mood = 'well';
    served.bank.finish(attempt!, 'captured');
    triedElevenTimes(attempt!);
    await untilStatus(served, one, 'paid');
    expect(await checked()).toMatchObject({ status: 'consistent', findings: [] });
    expect(await check('--url', served.url)).toMatchObject({ code: 0 });
  });

  it('is for admins, and for sales that exist', async () => {
    expectProblem(await served.call('GET', '/v1/ops/consistency'), 401, 'unauthenticated');
    expectProblem(await served.call('POST', '/v1/ops/consistency/check', { buyer: 'alice' }), 403, 'forbidden');
    const unknown = await served.call('POST', '/v1/ops/consistency/check', { admin: true, body: { saleId: '1' } });
    expectProblem(unknown, 404, 'not_found');
    const wrong = await served.call('POST', '/v1/ops/consistency/check', { admin: true, body: { sale: '1' } });
    expectProblem(wrong, 422, 'invalid_request');
  });

  it('says in one line what is wrong with the call, and does not take a refusal for a report', async () => {
    expect(await check('--url', 'shop')).toMatchObject({
      code: 2,
      stderr: 'doorbuster check: --url must be an http or https address, not shop\n',
    });
    expect(await check('--what')).toMatchObject({ code: 2 });
    expect(await run(['check', '--url', served.url], { DOORBUSTER_ADMIN_KEY: '' })).toMatchObject({
      code: 2,
      stderr: 'doorbuster check: an admin key is needed to run a check: set --admin-key or DOORBUSTER_ADMIN_KEY\n',
    });
    const nobody = await check('--url', 'http://127.0.0.1:1');
    expect(nobody).toMatchObject({ code: 1, stdout: '' });
    expect(nobody.stderr).toMatch(
      /^doorbuster check: no server answers at http:\/\/127\.0\.0\.1:1\/ .*ECONNREFUSED.*\n$/,
    );
    const refused = await check('--url', served.url, '--admin-key', 'another-key-of-enough-length');
    expect(refused).toMatchObject({ code: 1, stdout: '' });
    expect(refused.stderr).toMatch(/^doorbuster check: .* refused the check: .*401.*\n$/);
    expect(await check('--url', served.url, '--sale', 'none')).toMatchObject({ code: 1, stdout: '' });
  });
});
