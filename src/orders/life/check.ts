import { pages } from '../../base/sweep.ts';
import type { Timers } from '../../base/timers.ts';
import type { PaymentLedger, Release, ReleaseLedger, Unsettled, UnsettledRefund } from '../../ledger/port.ts';
import { FINDINGS_MAX, type Finding } from '../../model/finding.ts';
import type { PaymentAttempt } from '../../model/payment.ts';
import { TRIES_ALERT } from './due.ts';
import { OUTBOX_ALERT_MS } from './outbox.ts';

const PAGE = 500;

/**
 * Finds stuck units and unsettled payments: what sweeper and releaser could not finish within the bounds after which they
 * raise an alert. Reads the ledger by index, and only what has not ended: a million orders cost nothing here. Returns more than a report
 * holds if there are more.
 */
export async function checkLife(
  ledger: Pick<ReleaseLedger & PaymentLedger, 'releases' | 'unsettledAttempts' | 'unsettledRefunds'>,
  timers: Timers,
  saleId: string | null,
): Promise<Finding[]> {
  const findings: Finding[] = [];
  const read = (limit: number, after?: Release) => ledger.releases(limit, OUTBOX_ALERT_MS, after);
  for await (const page of pages<Release>(timers, PAGE, read)) {
    if (findings.length > FINDINGS_MAX) break;
    for (const release of page) {
      if (saleId === null || release.saleId === saleId) findings.push(stuckRelease(release));
    }
  }
  const unsettled = await ledger.unsettledAttempts(TRIES_ALERT, FINDINGS_MAX + 1, saleId);
  findings.push(...unsettled.map(unsettledPayment));
  const parts = await ledger.unsettledRefunds(TRIES_ALERT, FINDINGS_MAX + 1, saleId);
  findings.push(...parts.map(unsettledPart));
  return findings;
}

function stuckRelease({ orderId, saleId, units, createdAtMs }: Release): Finding {
  return {
    id: `release-${orderId}`,
    check: 'releases',
    saleId,
    subject: `order:${orderId}`,
    expected: `${units} ${units === 1 ? 'unit' : 'units'} back in the gate within ${OUTBOX_ALERT_MS / 1000} s of the order's end`,
    actual: `not back; the order ended at ${new Date(createdAtMs).toISOString()}`,
    cause: 'the gate has not taken them: Redis is out, or no process looks after releases',
    repair: 'bring Redis back and see that a serve or a worker runs: it gives them back by itself',
  };
}

function unsettledPayment({ attempt, saleId, orderStatus }: Unsettled): Finding {
  const { id, orderId, provider, reference, tries, error } = attempt;
  return {
    id: `payment-${id}`,
    check: 'payments',
    saleId,
    subject: `order:${orderId}`,
    ...trouble(attempt, orderStatus),
    cause: `${tries} tries at ${provider}, the last one: ${error ?? 'no answer'}`,
    repair: `ask ${provider} about payment ${reference ?? id}: it is tried on, and settles with an answer or a webhook`,
  };
}

function unsettledPart({ refund, provider, saleId }: UnsettledRefund): Finding {
  const { id, orderId, amount, tries, error } = refund;
  return {
    id: `refund-${id}`,
    check: 'payments',
    saleId,
    subject: `order:${orderId}`,
    expected: `${amount.amount} ${amount.currency} (smallest unit) back with the buyer`,
    actual: 'not back; the order is paid',
    cause: `${tries} tries at ${provider}, the last one: ${error ?? 'no answer'}`,
    repair: `ask ${provider} about refund ${id}: it is tried on, and settles with an answer`,
  };
}

function trouble({ state, amount }: PaymentAttempt, orderStatus: string): Pick<Finding, 'expected' | 'actual'> {
  const money = `${amount.amount} ${amount.currency} (smallest unit)`;
  switch (state) {
    case 'open':
      return {
        expected: `to know whether ${money} came`,
        actual: `nobody knows; the order is ${orderStatus} and its units are held`,
      };
    case 'late':
      return { expected: `goods for ${money}, or the money back`, actual: `neither; the order is ${orderStatus}` };
    case 'refunding':
      return { expected: `${money} back with the buyer`, actual: `not back; the order is ${orderStatus}` };
    default:
      return {
        expected: `no money, since the payment ${state === 'voided' ? 'was given up' : 'failed'}`,
        actual: `${money} may have come after all; the order is ${orderStatus}`,
      };
  }
}
