import { describe, expect, it } from 'vitest';
import * as S from '../../src/contract/schemas.ts';
import { sizeOf } from '../../src/contract/size.ts';
import { compile, compileQuery, faultsOf } from '../../src/contract/validate.ts';
import { bodyBytesMax } from '../../src/http/context.ts';

const fields = (count: number) => Object.fromEntries(Array.from({ length: count }, (_, at) => [`k${at}`, 0]));

describe('validation', () => {
  it('names all faults of what somebody wrote', () => {
    const validate = compile(S.NewSession);
    expect(validate({ username: 7, colour: 'red' })).toBe(false);
    const paths = faultsOf(validate.errors ?? [], 'body').map(({ path }) => path);
    expect(paths.sort()).toEqual(['/colour', '/password', '/username']);
    expect(validate({ username: 'ann', password: 'nine purple teapots' })).toBe(true);
  });

  it('P10: stops at the first fault if there are more parts than a valid value may have', () => {
    const validate = compile(S.NewSession);
    expect(validate(fields(63))).toBe(false);
    expect(validate.errors).toHaveLength(63 + 2);
    for (const many of [fields(64), fields(7000), { username: Array(7000).fill(0) }]) {
      expect(validate(many)).toBe(false);
      expect(validate.errors).toHaveLength(1);
    }
    const query = compileQuery(S.SalesQuery);
    expect(query(fields(3000))).toBe(false);
    expect(query.errors).toHaveLength(1);
  });

  it('names all faults of a definition as large as a sale may be', () => {
    const validate = compile(S.NewSale);
    const item = { code: 'a', name: 'a', price: { amount: 1, currency: 'CNY' }, stock: -1 };
    const sale = { name: 's', opensAt: '2026-01-01T00:00:00Z', closesAt: '2026-01-02T00:00:00Z', items: Array(200) };
    expect(validate({ ...sale, items: sale.items.fill(item) })).toBe(false);
    expect(validate.errors).toHaveLength(200);
  });

  it('fills in defaults', () => {
    const page = {};
    expect(compile(S.SalesQuery)(page)).toBe(true);
    expect(page).toEqual({ limit: 50 });
  });
});

describe('the largest value of a schema', () => {
  it('P10: bounds the body, and the longest valid one fits, written as escapes with a line for each member', () => {
    const escaped = (text: string) =>
      [...text].map((char) => char.replace(/./gs, (unit) => `\\u${unit.charCodeAt(0).toString(16)}`)).join('');
    const text = (length: number) => escaped('😀'.repeat(length));
    const longest: [object, number, Record<string, string>][] = [
      [S.NewSession, 4, { username: text(50), password: text(128) }],
      [S.NewAccount, 8, { username: text(50), email: `${text(252)}@a`, password: text(128) }],
      [S.PayOrder, 16, { method: text(32), token: text(1024) }],
    ];
    for (const [schema, kib, members] of longest) {
      expect(bodyBytesMax(schema)).toBe(kib * 1024);
      const body = `{\n${Object.entries(members)
        .map(([name, value]) => `  "${name}": "${value}"`)
        .join(',\n')}\n}\n`;
      expect(body.length).toBeLessThanOrEqual(kib * 1024);
      expect(compile(schema)(JSON.parse(body)), body.slice(0, 40)).toBe(true);
    }
    for (const schema of [S.NewPost, S.NewOrder])
      expect(bodyBytesMax(schema), 'never more than in general').toBe(64 * 1024);
  });

  it('is counted with every character as escapes', () => {
    expect(sizeOf({ type: 'string', maxLength: 3 })).toEqual({ bytes: 2 + 36, values: 1 });
    expect(sizeOf(S.Code)).toEqual({ bytes: 2 + 12 * 64, values: 1 });
    const list = { type: 'array', maxItems: 5, items: { type: 'integer' } };
    expect(sizeOf(list).values).toBe(6);
    const object = { type: 'object', additionalProperties: false, properties: { a: list, b: { anyOf: [list, list] } } };
    expect(sizeOf(object).values).toBe(13);
  });

  it('is none where nothing bounds it', () => {
    for (const schema of [{}, { type: 'string' }, { type: 'array', items: { type: 'integer' } }, { type: 'object' }]) {
      expect(sizeOf(schema).bytes).toBe(Number.POSITIVE_INFINITY);
    }
    expect(sizeOf({ type: 'object', properties: {} }).bytes).toBe(Number.POSITIVE_INFINITY);
  });
});
