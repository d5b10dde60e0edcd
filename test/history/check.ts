import type { Event, History } from './history.ts';

export type Rule =
  /** Tokens: one for each grant, larger for each later one of a name, the same on re-entry. */
  | 'token'
  /** Two that exclude each other both held at one moment. */
  | 'exclusion'
  /** A signal that aborted only after somebody else had it. */
  | 'signal'
  /** More permits out than there are. */
  | 'permits'
  /** The fence took writes in the wrong order, or refused one of a holder. */
  | 'fence'
  /** Redis gave it away before the holder's deadline. */
  | 'early'
  | 'fifo'
  /** Something did not end, or not in time. */
  | 'liveness'
  | 'unhandled'
  /** Something was left behind. */
  | 'left';

export interface Violation {
  readonly rule: Rule;
  readonly message: string;
  /** What happened to those involved, line by line. */
  readonly excerpt: readonly string[];
}

/** One acquisition, from the call to its end. Times in microseconds. */
interface Hold {
  readonly op: string;
  readonly w: number;
  readonly lock: string;
  readonly mode: 'read' | 'write';
  readonly permits: number;
  readonly waitMs: number | null;
  readonly leaseMs: number;
  readonly keepsToken: boolean;
  readonly invoked: number;
  waiting: number | null;
  acquired: number | null;
  token: bigint;
  /** Held at this moment, for certain, and so all the time since `acquired`. */
  until: number | null;
  /** Ended for its caller: given back, or found lost. */
  ended: boolean;
  failed: number | null;
  lost: { readonly t: number; readonly calm: boolean } | null;
  events: Event[];
}

type Held = Hold & { acquired: number; until: number };

/** Of deadlines that were read on another clock, and of timers. */
const SLACK_MS = 10;
const LATE_MS = 400;
/** Nothing in a schedule is held for longer, and no queue is longer, than this takes when nothing goes wrong. */
const WAIT_MS_MAX = 5_000;
const EXCERPT_LINES_MAX = 60;
/** A connection that was cut is subscribed again, and has caught up, within this. */
const AFTERMATH_MS = 700;

/** What a history breaks of what the locks promise; nothing, if all is well. */
export function check(history: History): Violation[] {
  return new Checker(history).run();
}

class Checker {
  readonly #history: History;
  readonly #holds = new Map<string, Hold>();
  readonly #violations: Violation[] = [];
  /** When Redis forgot: everything, or one name. */
  readonly #losses: { from: number; to: number; lock: string | null }[] = [];

  constructor(history: History) {
    this.#history = history;
    for (const { forgets, from, to } of history.troubles) if (forgets) this.#losses.push({ from, to, lock: null });
    for (const event of history.events) this.#take(event);
  }

  #take(event: Event): void {
    if (event.e === 'forcing') {
      const end = this.#history.events.find((each) => each.e === 'forced' && each.op === event.op);
      this.#losses.push({ from: event.t, to: end?.t ?? Infinity, lock: event.lock });
    }
    if (event.e === 'invoked') {
      const { op, w, lock, mode, permits, waitMs, leaseMs, keepsToken = false, t } = event;
      this.#holds.set(op, {
        ...{ op, w, lock, mode, permits, waitMs, leaseMs, keepsToken, invoked: t, events: [event] },
        ...{ waiting: null, acquired: null, token: 0n, until: null, ended: false, failed: null, lost: null },
      });
      return;
    }
    const hold = 'op' in event ? this.#holds.get(event.op) : undefined;
    if (!hold) return;
    hold.events.push(event);
    switch (event.e) {
      case 'waiting':
        hold.waiting ??= event.t;
        break;
      case 'acquired':
        hold.acquired = event.t;
        hold.token = BigInt(event.token);
        break;
      case 'held':
      case 'release':
        hold.until = Math.max(hold.until ?? 0, event.t);
        break;
      case 'lost':
        hold.lost = event;
        break;
      case 'failed':
        hold.failed = event.t;
        break;
      case 'unheld':
      case 'released':
      case 'unreleased':
        hold.ended = true;
    }
  }

  run(): Violation[] {
    for (const { name, kind, permits } of this.#history.locks) {
      const holds = [...this.#holds.values()].filter(({ lock }) => lock === name);
      const granted = holds.filter(({ acquired }) => acquired !== null) as Held[];
      this.#tokens(granted);
      if (kind === 'semaphore') this.#permits(granted, permits);
      else this.#exclusion(granted);
      if (kind === 'fair') this.#fifo(holds);
      this.#fence(name, granted);
    }
    for (const hold of this.#holds.values()) {
      this.#early(hold);
      this.#inTime(hold);
    }
    this.#end();
    return this.#violations;
  }

  #forgot(lock: string, from: number, to: number): boolean {
    return this.#losses.some((loss) => (loss.lock ?? lock) === lock && loss.from <= to && loss.to >= from);
  }

  /** Whether something was done to this process, or to all, or it stood still. */
  #troubled(w: number, from: number, to: number, kinds: 'any' | 'stops'): boolean {
    const { troubles, events, killed } = this.#history;
    const stops = (kind: string): boolean => kinds === 'any' || kind === 'stop';
    return (
      troubles.some((each) => (each.worker ?? w) === w && stops(each.kind) && each.from <= to && each.to >= from) ||
      events.some((each) => each.e === 'stall' && each.w === w && each.t >= from && each.t - each.ms * 1000 <= to) ||
      killed.some((each) => each.w === w && each.t >= from && each.t <= to)
    );
  }

  #tokens(granted: readonly Held[]): void {
    const seen = new Map<bigint, Hold>();
    for (const hold of granted) {
      for (const event of hold.events) {
        if (event.e === 'entered' && BigInt(event.token) !== hold.token) {
          this.#violate('token', `${hold.op} entered again and got another token`, hold);
        }
      }
      if (hold.keepsToken) continue;
      const other = seen.get(hold.token);
      if (other) this.#violate('token', `${other.op} and ${hold.op} have the same token`, other, hold);
      seen.set(hold.token, hold);
    }
    for (const before of granted) {
      for (const after of granted) {
        if (after.keepsToken || before.acquired >= after.invoked || before.token < after.token) continue;
        const message = `${after.op} asked after ${before.op} had it, and got a smaller token`;
        this.#violate('token', message, before, after);
      }
    }
  }

  #exclusion(granted: readonly Held[]): void {
    for (const [index, one] of granted.entries()) {
      for (const other of granted.slice(index + 1)) {
        if (one.mode === 'read' && other.mode === 'read') continue;
        const [first, second] = one.acquired <= other.acquired ? [one, other] : [other, one];
        if (this.#forgot(one.lock, Math.min(one.invoked, other.invoked), second.acquired)) continue;
        this.#pair(first, second);
      }
    }
  }

  #pair(first: Held, second: Held): void {
    // Who was never found held may not have known that it had it.
    const isCertain = ({ acquired, until }: Held): boolean => until !== null && until >= acquired;
    if (isCertain(first) && isCertain(second)) {
      if (second.acquired < first.until) {
        const ms = (Math.min(first.until, second.until) - second.acquired) / 1000;
        this.#violate('exclusion', `${first.op} and ${second.op} both held it for ${ms} ms`, first, second);
        return;
      }
      const sameToken = second.keepsToken && first.token === second.token;
      if (first.token >= second.token && !sameToken) {
        this.#violate('token', `${second.op} held it after ${first.op} by a smaller token`, first, second);
      }
    }
    if (!isCertain(second)) return;
    const { lost } = first;
    if (!lost?.calm || lost.t <= second.acquired) return;
    // Who has begun to give it back works no more.
    if (first.events.some((event) => event.e === 'release' && event.t < lost.t)) return;
    if (this.#troubled(first.w, lost.t - 300_000, lost.t, 'stops')) return;
    const ms = (lost.t - second.acquired) / 1000;
    this.#violate('signal', `the signal of ${first.op} aborted ${ms} ms after ${second.op} had it`, first, second);
  }

  #permits(granted: readonly Held[], limit: number): void {
    for (const { acquired } of granted) {
      const at = granted.filter((each) => each.acquired <= acquired && each.until !== null && each.until > acquired);
      const out = at.reduce((sum, { permits }) => sum + permits, 0);
      if (out <= limit) continue;
      if (this.#forgot(at[0]!.lock, Math.min(...at.map(({ invoked }) => invoked)), acquired)) continue;
      this.#violate('permits', `${out} permits of ${limit} are out`, ...at);
      return;
    }
  }

  #fence(lock: string, granted: readonly Held[]): void {
    const log = this.#history.fence[lock] ?? [];
    const left = new Set<string>();
    for (const [index, { token, op }] of log.entries()) {
      const before = log[index - 1];
      const hold = this.#holds.get(op);
      const of = hold ? [hold] : [];
      if (before && BigInt(before.token) > BigInt(token)) {
        this.#violate('fence', `a write of ${op} was accepted behind one of ${before.op}, which is later`, ...of);
      }
      if (before && before.op !== op) left.add(before.op);
      // Another holder's write between two of this one: both were taken for the present one.
      if (left.has(op)) this.#violate('fence', `writes of ${op} and of others were accepted in turn`, ...of);
    }
    for (const hold of granted) {
      const refused = hold.events.find((event) => event.e === 'write' && !event.accepted);
      if (!refused || hold.until === null || hold.until < refused.t) continue;
      const last = Math.max(...granted.filter((each) => each.acquired <= hold.until).map((each) => each.acquired));
      if (this.#forgot(lock, hold.invoked, Math.max(last, refused.t))) continue;
      this.#violate('fence', `${hold.op} held it after the fence had seen a later holder`, hold);
    }
  }

  /** A holder hears that it is not its own any more, though by its own clock nobody could have it. */
  #early(hold: Hold): void {
    // A hand-over may be longer than the lease that it turns into: a look just before that happens sees too much.
    const tooMuchMs = Math.max(0, this.#history.settings.handOverMs - hold.leaseMs);
    let deadline = 0;
    for (const event of hold.events) {
      if (event.e === 'held') deadline = event.t + event.leftMs * 990 - tooMuchMs * 1000;
      const refused =
        (event.e === 'lost' && event.reason === 'refused') || (event.e === 'unreleased' && event.why === 'refused');
      if (!refused || event.t >= deadline - SLACK_MS * 1000 || this.#forgot(hold.lock, hold.invoked, event.t)) continue;
      const ms = (deadline - event.t) / 1000;
      this.#violate('early', `Redis took it from ${hold.op} ${ms} ms before its lease was over`, hold);
      return;
    }
  }

  #fifo(holds: readonly Hold[]): void {
    for (const first of holds) {
      if (first.waiting === null) continue;
      const endOfFirst = first.acquired ?? first.failed;
      if (endOfFirst === null) continue;
      for (const second of holds) {
        if (second.invoked <= first.waiting || second.acquired === null) continue;
        const passed = first.acquired === null ? second.acquired < endOfFirst : second.token < first.token;
        if (!passed) continue;
        const from = first.invoked - AFTERMATH_MS * 1000;
        const to = second.acquired;
        if (this.#forgot(first.lock, from, to)) continue;
        if (this.#troubled(first.w, from, to, 'any') || this.#troubled(second.w, from, to, 'any')) continue;
        this.#violate('fifo', `${second.op} was served before ${first.op}, which was in the queue`, first, second);
      }
    }
  }

  #inTime(hold: Hold): void {
    const { killed, settings, left, troubles, from } = this.#history;
    if (killed.some(({ w }) => w === hold.w)) return;
    const end = hold.acquired ?? hold.failed;
    if (end === null || (hold.acquired !== null && !hold.ended && !this.#turned(hold))) {
      if (!left.hung.includes(hold.w)) return;
      this.#violate('liveness', `${hold.op} never ended`, ...this.#company(hold, Infinity));
      return;
    }
    const calmFrom = Math.max(from, ...troubles.map(({ to }) => to));
    const lateMs = (end - Math.max(hold.invoked, calmFrom)) / 1000;
    if (lateMs > WAIT_MS_MAX) {
      const message = `${hold.op} waited for ${lateMs} ms after all faults had ended`;
      this.#violate('liveness', message, ...this.#company(hold, end));
    }
    if (hold.waitMs === null) return;
    const limitMs = hold.waitMs > 0 ? hold.waitMs : settings.outageMs + 2 * settings.commandMs;
    const ms = (end - hold.invoked) / 1000;
    if (ms <= limitMs * 1.01 + LATE_MS || this.#troubled(hold.w, hold.invoked, end, 'stops')) return;
    this.#violate('liveness', `${hold.op} was to end within ${limitMs} ms, and took ${ms} ms`, hold);
  }

  /** Those it waited for: what they did last. */
  #company(hold: Hold, end: number): Hold[] {
    const others = [...this.#holds.values()].filter((each) => {
      const last = each.events.at(-1)!.t;
      return each !== hold && each.lock === hold.lock && each.invoked <= end && last >= hold.invoked;
    });
    return [hold, ...others.sort((one, other) => one.events.at(-1)!.t - other.events.at(-1)!.t).slice(-5)];
  }

  /** It went on as a writer, or as a reader. */
  #turned({ op }: Hold): boolean {
    return this.#holds.has(`${op}+`) || this.#holds.has(`${op}-`);
  }

  #end(): void {
    const { left, events } = this.#history;
    for (const event of events) {
      if (event.e === 'unhandled') this.#violate('unhandled', `process ${event.w}: ${event.why}`);
    }
    if (left.hung.length > 0) this.#violate('liveness', `processes ${left.hung.join(', ')} did not end`);
    if (left.stuck.length > 0) this.#violate('left', `a newcomer could not take ${left.stuck.join(', ')}`);
    if (left.listed.length > 0) this.#violate('left', `list() shows ${left.listed.join('; ')}`);
    if (left.keys.length > 0) this.#violate('left', `keys were left: ${left.keys.join(', ')}`);
  }

  #violate(rule: Rule, message: string, ...holds: readonly Hold[]): void {
    const locks = [...new Set(holds.map(({ lock }) => lock))].join(', ');
    const where = locks === '' ? message : `${locks}: ${message}`;
    this.#violations.push({ rule, message: where, excerpt: this.#excerpt(holds) });
  }

  #excerpt(involved: readonly Hold[]): string[] {
    // What they turned into, or came from, belongs to them.
    const baseOf = (op: string): string => op.replace(/[+-]$/, '');
    const bases = new Set(involved.map(({ op }) => baseOf(op)));
    const holds = [...this.#holds.values()].filter(({ op }) => bases.has(baseOf(op)));
    const all = holds.flatMap(({ events }) => events);
    const from = Math.min(...all.map(({ t }) => t)) - 300_000;
    const to = Math.max(...all.map(({ t }) => t)) + 100_000;
    const lines = all.map((event) => ({ t: event.t, text: `process ${event.w}  ${textOf(event)}` }));
    const workers = new Set(holds.map(({ w }) => w));
    for (const event of this.#history.events) {
      const besides = event.e === 'stall' && workers.has(event.w);
      if (besides && event.t >= from && event.t <= to)
        lines.push({ t: event.t, text: `process ${event.w}  ${textOf(event)}` });
    }
    for (const each of this.#history.troubles) {
      if (each.from > to || each.to < from || (each.worker !== null && !workers.has(each.worker))) continue;
      const of = each.worker === null ? '' : ` of process ${each.worker}`;
      lines.push({ t: each.from, text: `${each.kind}${of} begins${each.forgets ? ' (Redis forgets)' : ''}` });
      lines.push({ t: each.to, text: `${each.kind}${of} ends` });
    }
    lines.sort((one, other) => one.t - other.t);
    return thinned(lines).map(
      ({ t, text }) => `${((t - this.#history.from) / 1000).toFixed(1).padStart(8)} ms  ${text}`,
    );
  }
}

/** Of a row of looks and writes of one hold only the first and the last matter. */
function thinned<T extends { text: string }>(lines: readonly T[]): T[] {
  const rowOf = (line: T | undefined): string =>
    /^process \d+ {2}\S+ (?=held|wrote)/.exec(line?.text ?? '')?.[0] ?? line?.text ?? '';
  const kept = lines.filter((line, index) => {
    const row = rowOf(line);
    return row === line.text || row !== rowOf(lines[index - 1]) || row !== rowOf(lines[index + 1]);
  });
  if (kept.length <= EXCERPT_LINES_MAX) return kept;
  const half = EXCERPT_LINES_MAX / 2;
  return [...kept.slice(0, half), ...kept.slice(-half)];
}

function textOf(event: Event): string {
  switch (event.e) {
    case 'invoked':
      return `${event.op} invoked (${event.mode}, ${event.permits}, waits ${event.waitMs ?? 'for ever'})`;
    case 'acquired':
      return `${event.op} acquired, token ${event.token}`;
    case 'entered':
      return `${event.op} entered again, token ${event.token}`;
    case 'held':
      return `${event.op} held, ${event.leftMs.toFixed(1)} ms left`;
    case 'write':
      return `${event.op} wrote: ${event.accepted ? 'accepted' : 'REFUSED'}`;
    case 'lost':
      return `${event.op} signal: ${event.reason}${event.calm ? ' (calm)' : ''}`;
    case 'unreleased':
    case 'failed':
      return `${event.op} ${event.e}: ${event.why}`;
    case 'stall':
      return `stood still for ${event.ms.toFixed(1)} ms`;
    case 'unhandled':
      return `unhandled: ${event.why}`;
    default:
      return `${event.op} ${event.e}`;
  }
}

/** For people: the seed first, since it is what they need. */
export function report(history: History, violations: readonly Violation[]): string {
  const { seed, settings } = history;
  const heads = [`history seed=${seed}: ${violations.length} violations (HISTORY_SEED=${seed} replays the schedule)`];
  heads.push(`  ${JSON.stringify(settings)}`);
  for (const { rule, message, excerpt } of violations.slice(0, 3)) {
    heads.push(`  [${rule}] ${message}`, ...excerpt.map((line) => `    ${line}`));
  }
  return heads.join('\n');
}
