import type { CrowdReport } from './crowd.ts';
import type { Finding } from './faults.ts';
import type { CrowdFigures } from './people.ts';
import type { Verdict } from './verdict.ts';
import { count, grouped } from './words.ts';

/** Printed before the crowd enters. */
export function introduction(
  { sale, item, freeBefore, topUpAdded }: Pick<CrowdReport, 'sale' | 'item' | 'freeBefore' | 'topUpAdded'>,
  { buyers, attempts, quantity }: Pick<CrowdReport, 'buyers' | 'attempts' | 'quantity'>,
): string {
  const lines = [
    `${count(buyers, 'buyer')}, ${count(attempts, 'try', 'tries')} each, for ${count(freeBefore, 'free unit')} of ${item} in “${sale.name}” (at most ${sale.perBuyer} for each buyer)`,
  ];
  if (topUpAdded > 0) lines.push(`topped up: ${count(topUpAdded, 'unit')} added`);
  const refusing = { scheduled: 'has not opened yet', paused: 'is paused', closed: 'is closed' }[sale.state];
  if (refusing !== undefined) lines.push(`the sale ${refusing}: every order will be refused, which is correct`);
  else if (freeBefore < quantity)
    lines.push('the item is already sold out: every order will be refused, which is correct (--top-up adds stock)');
  return lines.join('\n');
}

/** The whole report as text; its last line is the verdict. */
export function reportWords(report: CrowdReport): string {
  return reportText(report, count(report.buyers, 'buyer'), figures(report));
}

interface Judged extends CrowdFigures {
  verdict: { held: boolean; findings: readonly Finding[] } | null;
  noVerdict: string | null;
}

/** A crowd's report: why it ended early, its figures, each promise, and the verdict. `all`: the whole crowd, in words. */
export function reportText(report: Judged, all: string, rows: readonly [name: string, words: string][]): string {
  const { verdict, endedEarly, entered } = report;
  return [
    '',
    ...(endedEarly === null ? [] : [`  ${endedEarly}: ${grouped(entered)} of ${all} had entered`, '']),
    ...rows.map(([name, words]) => `  ${name.padEnd(12)}${words}`),
    '',
    ...(verdict === null ? [] : [...promises(verdict.findings), '']),
    lastLine(report),
  ].join('\n');
}

/** What every crowd's figures begin with. */
export function firstRows(report: CrowdFigures): [string, string][] {
  const { requests, seconds, requestsPerSecond, latencyMs, seed } = report;
  const rows: [string, string][] = [
    ['answers', `${grouped(requests)} in ${seconds.toFixed(1)} s, ${grouped(Math.round(requestsPerSecond))} a second`],
  ];
  if (latencyMs !== null) rows.push(['latency', latencyWords(latencyMs)]);
  return [...rows, ['seed', String(seed)]];
}

function figures(report: CrowdReport): [string, string][] {
  const { answers, verdict } = report;
  const rows = firstRows(report);
  // Without a verdict there are only the answers that the buyers got.
  if (verdict === null) return [...rows, ['told', toldWords(answers)]];
  const { sold, queued, replayed, refused, comeBacks, connectionErrors, untold, expired, undecided } = verdict;
  rows.push([
    'sold',
    `${count(sold.orders, 'order')}, ${count(sold.units, 'unit')}, to ${count(sold.buyers, 'buyer')}`,
  ]);
  if (queued.orders > 0) rows.push(['queued', queuedWords(queued)]);
  rows.push(['repeated', `${count(replayed, 'answer')} repeated the order of an earlier request with the same key`]);
  rows.push(['refused', byCode(refused)]);
  rows.push(['oversold', count(verdict.oversold, 'unit')]);
  rows.push(['duplicates', grouped(verdict.duplicates)]);
  rows.push(['lost', grouped(verdict.lost)]);
  if (Object.keys(comeBacks).length > 0) rows.push(['put off', byCode(comeBacks)]);
  if (connectionErrors > 0)
    rows.push(['broken', `${count(connectionErrors, 'connection')}, retried with the same key`]);
  if (undecided > 0) rows.push(['undecided', `${count(undecided, 'key')} never got a final answer`]);
  if (untold > 0) rows.push(['untold', `${count(untold, 'order')} in the ledger whose buyer got no answer`]);
  if (expired > 0) rows.push(['expired', `${count(expired, 'order')}, not paid in time`]);
  return rows;
}

function queuedWords({ orders, reserved, rejected, undecided, longestMs }: Verdict['queued']): string {
  const words = [`${count(orders, 'order')} answered 202: ${grouped(reserved)} reserved later`];
  if (Object.keys(rejected).length > 0) words.push(`rejected later: ${codes(rejected)}`);
  if (undecided.length > 0) words.push(`undecided: ${grouped(undecided.length)}`);
  if (longestMs !== null) words.push(`seen decided within ${(longestMs / 1000).toFixed(1)} s`);
  return words.join('; ');
}

function promises(findings: readonly Finding[]): string[] {
  return findings.flatMap(({ subject, held, says, examples }) => [
    `  ${held ? '✓' : '✗'} ${subject.padEnd(4)}${says}`,
    ...examples.map((words) => `         ${words}`),
  ]);
}

function lastLine({ verdict, noVerdict, endedEarly }: Judged): string {
  if (verdict === null) return `verdict: UNKNOWN: ${noVerdict}`;
  if (verdict.held) return `verdict: every promise held${endedEarly === null ? '' : ', as far as the crowd got'}`;
  const broken = verdict.findings.filter(({ held }) => !held);
  return `verdict: BROKEN: ${broken.map(({ subject, says }) => `${subject} ${says}`).join('; ')}`;
}

function latencyWords({ p50, p95, p99, max }: NonNullable<CrowdFigures['latencyMs']>): string {
  return `p50 ${ms(p50)}, p95 ${ms(p95)}, p99 ${ms(p99)}, max ${ms(max)}`;
}

function byCode(counts: Record<string, number>): string {
  const total = Object.values(counts).reduce((sum, times) => sum + times, 0);
  return total === 0 ? '0' : `${grouped(total)}: ${codes(counts)}`;
}

/** Every answer by its status or code: 1 079 answers: 1 079 × 200 */
export function toldWords(answers: Record<string, number>): string {
  const sorted = Object.entries(answers).sort(([, a], [, b]) => b - a);
  const total = sorted.reduce((sum, [, times]) => sum + times, 0);
  const each = sorted.map(([code, times]) => `${grouped(times)} × ${code}`);
  return total === 0 ? 'no answers' : `${count(total, 'answer')}: ${each.join(', ')}`;
}

function codes(counts: Record<string, number>): string {
  const sorted = Object.entries(counts).sort(([, a], [, b]) => b - a);
  return sorted.map(([code, times]) => `${code} ${grouped(times)}`).join(', ');
}

function ms(value: number): string {
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`;
}
