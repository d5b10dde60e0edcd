import { firstRows, reportText, toldWords } from '../report.ts';
import { count, grouped } from '../words.ts';
import type { LikeCrowdOptions, LikeCrowdReport } from './crowd.ts';

/** Printed before the crowd enters. */
export function likeIntroduction({ likers, attempts, posts }: LikeCrowdOptions): string {
  return `${count(likers, 'liker')}, ${count(attempts, 'step')} each, on ${count(posts, 'new post')}`;
}

/** The whole report as text; its last line is the verdict. */
export function likeReportWords(report: LikeCrowdReport): string {
  return reportText(report, count(report.likers, 'liker'), figures(report));
}

function figures(report: LikeCrowdReport): [string, string][] {
  const { answers, verdict } = report;
  const rows: [string, string][] = [...firstRows(report), ['told', toldWords(answers)]];
  if (verdict === null) return rows;
  const { changes, repeats, likes, unknown } = verdict;
  rows.push(['changed', `${grouped(changes)}, and ${grouped(repeats)} repeated what was so already`]);
  rows.push(['likes', `${grouped(likes)} stand`]);
  if (unknown > 0) rows.push(['unknown', `${count(unknown, 'last answer')} got lost: not counted as a fault`]);
  return rows;
}
