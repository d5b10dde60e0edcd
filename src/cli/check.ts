import type { Static } from 'typebox';
import { TerminalError } from '../base/errors.ts';
import type { CheckReport } from '../contract/schemas.ts';
import { Client, codeOf, detailOf, type Reply, unansweredWords } from '../crowd/client.ts';
import { FINDINGS_MAX } from '../model/finding.ts';
import { type Command, optionHelp, parseFlags } from './command.ts';
import { adminKeyOf, urlOf, withKeyJoined } from './remote.ts';

type Report = Static<typeof CheckReport>;

const FLAGS = {
  url: { type: 'string' },
  sale: { type: 'string' },
  'admin-key': { type: 'string' },
  json: { type: 'boolean' },
} as const;
const URL_DEFAULT = 'http://127.0.0.1:8080';

export const check: Command = {
  help: `Usage: doorbuster check [options]

Asks a running server to find stuck stock, unsettled payments and wrong counts, and prints them:
  releases  units of ended orders that the gate has not got back after five minutes
  payments  payments and refunds still unsettled after twelve attempts: units stay held, or money is without goods
  counts    counts of likes, comments and replies that differ from the rows; not with --sale

${optionHelp([
  ['--url', `address of the server (default ${URL_DEFAULT})`],
  ['--sale', 'check only the sale with this id'],
  ['--admin-key', 'admin key (DOORBUSTER_ADMIN_KEY)'],
  ['--json', 'print the report as one JSON object'],
])}

Exit code: 0 nothing found; 1 something found, or the server did not answer; 2 wrong usage.`,
  async run(args) {
    const flags = parseFlags(withKeyJoined(args), FLAGS);
    const url = urlOf((flags.url as string | undefined) ?? URL_DEFAULT);
    const adminKey = adminKeyOf(flags, 'to run a check');
    const report = await ask(url, adminKey, flags.sale as string | undefined);
    console.log(flags.json === true ? JSON.stringify(report) : words(report));
    return report.status === 'consistent' ? 0 : 1;
  },
};

async function ask(url: URL, adminKey: string, saleId: string | undefined): Promise<Report> {
  const client = new Client(url, 1);
  const part = async (body: { saleId?: string; from?: string }): Promise<Report> => {
    const reply = await client.call('POST', '/v1/ops/consistency/check', { bearer: adminKey, body });
    if (reply.ok && reply.status === 200) return reply.body as Report;
    throw new TerminalError('cannot_start', notChecked(client.url, reply));
  };
  try {
    let report = await part(saleId === undefined ? {} : { saleId });
    // A large table is checked in several calls. A server of the version before says nothing of that.
    while (typeof report.next === 'string' && report.findings.length < FINDINGS_MAX) {
      const rest = await part({ from: report.next });
      const findings = [...report.findings, ...rest.findings];
      const status = findings.length === 0 ? 'consistent' : 'inconsistent';
      report = { ...report, status, findings, more: report.more || rest.more, next: rest.next };
    }
    return report;
  } finally {
    client.close();
  }
}

function notChecked(url: string, reply: Reply): string {
  if (!reply.ok) return unansweredWords(url, reply.reason);
  const unknownRoute = reply.status === 404 && detailOf(reply).endsWith('there is no such route');
  if (unknownRoute || (reply.status === 404 && codeOf(reply.body) === null)) {
    const { origin, pathname } = new URL(url);
    // Advice that differs from what was just tried.
    const advice =
      pathname === '/'
        ? `if the shop is mounted in your application, --url needs its path, such as ${origin}/shop`
        : `there is no shop at this path; one that is not mounted in an application is at ${origin}`;
    return `${url} has no such route (404): ${advice}`;
  }
  return `${url} refused the check: ${detailOf(reply)}`;
}

function words({ checks, findings, more, next }: Report): string {
  if (findings.length === 0) {
    const counts = checks.includes('counts') ? ', no wrong counts' : '';
    return `no stuck stock, no unsettled payments${counts} (checked ${checks.join(', ')})`;
  }
  const blocks = findings.map(({ check, saleId, subject, expected, actual, cause, repair }) =>
    [
      `✗ ${check}: ${subject}${saleId === undefined ? '' : ` of sale ${saleId}`}`,
      `    expected  ${expected}`,
      `    actual    ${actual}`,
      `    cause     ${cause}`,
      `    to do     ${repair}`,
    ].join('\n'),
  );
  const count = `${findings.length}${more || typeof next === 'string' ? ' or more' : ''} found (checked ${checks.join(', ')})`;
  return [...blocks, count].join('\n');
}
