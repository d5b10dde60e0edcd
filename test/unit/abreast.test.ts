import { describe, expect, it } from 'vitest';
import { abreast } from '../../src/ledger/life/abreast.ts';
import { CLOCK, COMMIT, nowOf, query, type Step, type Work } from '../../src/ledger/life/step.ts';
import type { Result } from '../../src/ledger/sql/session.ts';

/** What was asked, round by round; each query is answered by its own text, the clock by the number of the round. */
function done<T>(work: Work<T>): { value: T; rounds: string[][] } {
  const rounds: string[][] = [];
  let round = work.next();
  while (!round.done) {
    rounds.push(round.value.map(nameOf));
    const answer = (step: Step): Result => ({ rows: [{ said: nameOf(step), now_ms: rounds.length }], affected: 0 });
    round = work.next(round.value.map(answer));
  }
  return { value: round.value, rounds };
}

function nameOf(step: Step): string {
  return step.do === 'query' ? step.sql : step.do;
}

/** Reads and the clock, then writes and commits; says what it was told. */
function* change(name: string): Work<string> {
  const [clock, read] = yield [CLOCK, query(`read ${name}`)];
  const [written] = yield [query(`write ${name}`), COMMIT];
  return [nowOf(clock), read!.rows[0]!.said, written!.rows[0]!.said].join(', ');
}

function* look(name: string): Work<string> {
  const [read] = yield [query(`read ${name}`)];
  return read!.rows[0]!.said as string;
}

function* late(): Work<string> {
  yield [query('first')];
  yield [query('second')];
  return 'late';
}

describe('works abreast', () => {
  it('go in the same trips, read one clock behind everything, and get what is theirs', () => {
    const { value, rounds } = done(abreast([change('a'), look('b'), change('c')]));
    expect(rounds).toEqual([
      ['read a', 'read b', 'read c', 'clock'],
      ['write a', 'write c', 'commit'],
    ]);
    expect(value).toEqual(['1, read a, write a', 'read b', '1, read c, write c']);
  });

  it('commit with a round only if it is the last of all', () => {
    const { rounds } = done(abreast<string>([change('a'), late(), look('b')]));
    expect(rounds).toEqual([
      ['read a', 'first', 'read b', 'clock'],
      ['write a', 'second'],
    ]);
  });

  it('of none is nothing', () => {
    expect(done(abreast([]))).toEqual({ value: [], rounds: [] });
  });

  it('fail together', () => {
    function* fails(): Work<string> {
      yield [query('read f')];
      throw new Error('taken back');
    }
    expect(() => done(abreast([change('a'), fails()]))).toThrow('taken back');
  });
});
