import { byCode, latencyWords } from '../report.ts';
import { count, grouped } from '../words.ts';
import type { LikeCrowdOptions, LikeCrowdReport } from './crowd.ts';

/** Printed before the crowd enters. */
export function likeIntroduction({ likers, attempts, posts }: LikeCrowdOptions): string {
  return `${count(likers, 'liker')}, ${count(attempts, 'step')} each, on ${count(posts, 'new post')}`;
}

/** The whole report as text; its last line is the verdict. */
export function likeReportWords(report: LikeCrowdReport): string {
  const { verdict, endedEarly } = report;
  const early = `  ${endedEarly}: ${grouped(report.entered)} of ${count(report.likers, 'liker')} had entered`;
  return [
    '',
    ...(endedEarly === null ? [] : [early, '']),
    ...figures(report).map(([name, words]) => `  ${name.padEnd(12)}${words}`),
    '',
    ...(verdict === null ? [] : [...promises(report), '']),
    lastLine(report),
  ].join('\n');
}

function figures(report: LikeCrowdReport): [string, string][] {
  const { requests, seconds, requestsPerSecond, latencyMs, seed, answers, verdict } = report;
  const rows: [string, string][] = [
    ['answers', `${grouped(requests)} in ${seconds.toFixed(1)} s, ${grouped(Math.round(requestsPerSecond))} a second`],
  ];
  if (latencyMs !== null) rows.push(['latency', latencyWords(latencyMs)]);
  rows.push(['seed', String(seed)], ['told', byCode(answers)]);
  if (verdict === null) return rows;
  const { changes, repeats, likes, unknown } = verdict;
  rows.push(['changed', `${grouped(changes)}, and ${grouped(repeats)} repeated what was so already`]);
  rows.push(['likes', `${grouped(likes)} stand`]);
  if (unknown > 0) rows.push(['unknown', `${count(unknown, 'last answer')} got lost: not counted as a fault`]);
  return rows;
}

function promises({ verdict }: LikeCrowdReport): string[] {
  return verdict!.findings.flatMap(({ subject, held, says, examples }) => [
    `  ${held ? '✓' : '✗'} ${subject.padEnd(4)}${says}`,
    ...examples.map((words) => `         ${words}`),
  ]);
}

function lastLine({ verdict, noVerdict, endedEarly }: LikeCrowdReport): string {
  if (verdict === null) return `verdict: UNKNOWN: ${noVerdict}`;
  if (verdict.held) return `verdict: every promise held${endedEarly === null ? '' : ', as far as the crowd got'}`;
  const broken = verdict.findings.filter(({ held }) => !held);
  return `verdict: BROKEN: ${broken.map(({ subject, says }) => `${subject} ${says}`).join('; ')}`;
}
