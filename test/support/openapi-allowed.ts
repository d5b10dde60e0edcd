import fc from 'fast-check';
import { isName, type Operation, type Plan, type Schema } from './openapi-fuzz.ts';

/**
 * Generates requests that the OpenAPI document allows, from its schemas alone, and requests that are one beyond one of its
 * bounds. Any other generator would do the same: an unknown `format` allows any text.
 */

type Parameter = Operation['parameters'][number];

/** Texts that often cause problems: control characters, half a surrogate pair, outer blanks, many bytes. */
const ODD = [
  ...['', ' ', ' a', 'a ', '\ta', 'a\u00a0', '\ufeffa', 'a\u0000b', 'a\u0085b', 'a\u2028b', '\ud800', 'a\udc00b', 'é'],
  ...['界', '🎟', 'constructor', '__proto__', '0', '-1', '007', '1e2', '1.5', '%00', '9223372036854775807'],
  ...['9223372036854775808', '9999999999999999999', '18446744073709551616', 'null', 'a:b', 'a, b'],
];

/** Edge cases of RFC 3339. */
const TIMES = [
  ...['0000-01-01T00:00:00Z', '9999-12-31T23:59:59.999Z', '2026-06-30t12:00:00z', '1970-01-01T00:00:00.0001+14:00'],
  ...['2016-12-31T23:59:60Z', '9999-12-31T23:59:59-23:59', '0000-01-01T00:00:00+23:59'],
];

const lengthOf = (text: string): number => [...text].length;

/** True if the schema allows the text. */
function fits(schema: Schema, text: string): boolean {
  const length = lengthOf(text);
  if (length < (schema.minLength ?? 0) || length > (schema.maxLength ?? Number.POSITIVE_INFINITY)) return false;
  if (schema.enum !== undefined && !schema.enum.includes(text)) return false;
  return schema.pattern === undefined || new RegExp(schema.pattern, 'u').test(text);
}

const made = new Map<string, fc.Arbitrary<string>>();

/** Cached, because parsing a pattern takes longer than a request. */
function texts(schema: Schema): fc.Arbitrary<string> {
  const key = JSON.stringify(schema);
  const arbitrary = made.get(key) ?? newTexts(schema);
  made.set(key, arbitrary);
  return arbitrary;
}

function newTexts(schema: Schema): fc.Arbitrary<string> {
  const { pattern, format, maxLength = 100 } = schema;
  if (format === 'date-time') {
    const dates = fc.date({ noInvalidDate: true, min: new Date(0), max: new Date(4e12) });
    return fc.oneof(
      { arbitrary: dates.map((date) => date.toISOString()), weight: 3 },
      { arbitrary: fc.constantFrom(...TIMES), weight: 1 },
    );
  }
  if (format === 'uri') {
    // URLs lead to this machine, where nobody listens, so that no DNS is needed.
    const paths = fc.stringMatching(/^[A-Za-z0-9._~/-]{0,40}$/);
    const hosts = ['http', 'https'].map((scheme) => `${scheme}://127.0.0.1:9/`).filter((host) => fits(schema, host));
    return fc.tuple(fc.constantFrom(...hosts), paths).map(([host, path]) => host + path);
  }
  const odd = [
    ...ODD,
    ...['x', '0', '界', '🎟'].map((character) => character.repeat(Math.min(maxLength, 2000))),
    // Spaces inside, which a name may contain.
    `x${' '.repeat(Math.max(Math.min(maxLength, 2000) - 2, 0))}x`,
  ].filter((text) => fits(schema, text));
  const free = fc.oneof(
    fc.string({ unit: 'binary', maxLength: Math.min(maxLength, 50) }),
    fc.string({ maxLength: Math.min(maxLength, 50) }),
  );
  const matching = pattern === undefined ? fc.constant('x') : fc.stringMatching(new RegExp(pattern, 'u'));
  const sure = [...odd, ...((schema.examples ?? []) as string[]), 'x'].find((text) => fits(schema, text));
  // A free text often does not match: then take the one that was made from the pattern.
  const fitting = fc.tuple(free, matching).map(([some, matched]) => {
    const found = [some, matched, sure].find((text) => text !== undefined && fits(schema, text));
    if (found === undefined) throw new Error(`no text fits ${JSON.stringify(schema)}`);
    return found;
  });
  return odd.length === 0 ? fitting : fc.oneof(fitting, fc.constantFrom(...odd));
}

/** Any value that the schema allows. */
export function allowed(schema: Schema): fc.Arbitrary<unknown> {
  if (schema.const !== undefined) return fc.constant(schema.const);
  if (schema.enum) return fc.constantFrom(...schema.enum);
  if (Array.isArray(schema.type)) {
    return fc.oneof(...schema.type.map((type) => (type === 'null' ? fc.constant(null) : allowed({ ...schema, type }))));
  }
  switch (schema.type) {
    case 'boolean':
      return fc.boolean();
    case 'object': {
      const { additionalProperties: values } = schema;
      if (typeof values === 'object') {
        return fc.dictionary(texts(schema.propertyNames!).filter(isName), allowed(values), { maxKeys: 3 });
      }
      const fields = Object.entries(schema.properties ?? {}).map(([key, of]) => [key, allowed(of)] as const);
      return fc.record(Object.fromEntries(fields), { requiredKeys: schema.required ?? [] });
    }
    case 'array': {
      const { items, minItems: minLength = 0, maxItems = 3, uniqueItems } = schema;
      const lengths = { minLength, maxLength: Math.min(maxItems, 3) };
      return uniqueItems ? fc.uniqueArray(allowed(items!), lengths) : fc.array(allowed(items!), lengths);
    }
    case 'integer': {
      const min = schema.minimum ?? Number.MIN_SAFE_INTEGER;
      const max = schema.maximum ?? Number.MAX_SAFE_INTEGER;
      return fc.oneof(fc.integer({ min, max }), fc.constantFrom(min, max));
    }
    case 'number': {
      const { minimum: min, maximum: max } = schema as { minimum: number; maximum: number };
      return fc.oneof(fc.double({ min, max, noNaN: true }), fc.constantFrom(min, max));
    }
    case 'string':
      return texts(schema);
    default:
      throw new Error(`no generator for ${JSON.stringify(schema)}: teach it`);
  }
}

/** True if HTTP can carry the text in a header, as UTF-8. */
function carried(text: string): boolean {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what it looks for
  return text.isWellFormed() && !/[\u0000-\u001f\u007f]/.test(text) && text.trim() === text;
}

function wire(text: string): string {
  return Buffer.from(text, 'utf8').toString('latin1');
}

function present(parameters: Parameter[]): fc.Arbitrary<[string, string][]> {
  if (parameters.length === 0) return fc.constant([]);
  const one = ({ name, schema, required, in: place }: Parameter): fc.Arbitrary<[string, string][]> => {
    const value = allowed(schema).map(String);
    const sendable = place === 'header' ? value.filter(carried).map(wire) : value.filter((text) => text.isWellFormed());
    const pair = sendable.map((text): [string, string][] => [[name.toLowerCase(), text]]);
    return required ? pair : fc.oneof(pair, fc.constant<[string, string][]>([]));
  };
  return fc.tuple(...parameters.map(one)).map((pairs) => pairs.flat());
}

const within = (operation: Operation, place: string): Parameter[] =>
  operation.parameters.filter((one) => one.in === place);

/** Requests to one operation that the document allows, with valid credentials. */
export function allowedPlans(operation: Operation): fc.Arbitrary<Plan> {
  const params = within(operation, 'path').map(({ name, schema }) => {
    const known: fc.Arbitrary<number | string> = name === 'code' ? fc.constant('voucher-100') : fc.nat(9);
    const any = texts(schema).filter((text) => text !== '' && text.isWellFormed());
    return [name, name === 'provider' ? fc.constant('sandbox') : fc.oneof(known, any.map(encodeURIComponent))] as const;
  });
  const { body, security } = operation;
  const bodies = body === null ? fc.constant(null) : allowed(body.schema).map((json) => ({ json }));
  return fc.record<Plan>({
    method: fc.constant(operation.method),
    params: fc.record(Object.fromEntries(params) as Record<string, fc.Arbitrary<number | string>>),
    query: present(within(operation, 'query')).map((pairs) =>
      // Names of query parameters are case-sensitive, unlike those of headers.
      pairs.map(([name, value]) => [
        within(operation, 'query').find((one) => one.name.toLowerCase() === name)!.name,
        value,
      ]),
    ),
    headers: present(within(operation, 'header')),
    auth: fc.constantFrom(...(security.includes('buyer') ? ['alice', 'admin'] : ['admin'])),
    body: body?.required === false ? fc.oneof(fc.constant(null), bodies) : bodies,
  });
}

/** A request that is one beyond a bound: what is sent, and where and why it is wrong. */
export interface Beyond {
  what: string;
  /** The path that the problem's `errors` must name. */
  path: string;
  plan: Plan;
}

/** Values that are one beyond each bound of a schema without nested schemas. */
function beyondValues(schema: Schema): { what: string; value: unknown }[] {
  const found: { what: string; value: unknown }[] = [];
  const add = (what: string, value: unknown): void => void found.push({ what, value });
  const { minimum, maximum, minLength, maxLength, pattern } = schema;
  if (schema.type === 'integer') {
    if (minimum !== undefined) add(`below ${minimum}`, minimum - 1);
    if (maximum !== undefined) add(`above ${maximum}`, maximum + 1);
    add('not whole', (minimum ?? 0) + 0.5);
  }
  if (schema.type === 'number') {
    if (minimum !== undefined) add(`below ${minimum}`, minimum - 1);
    if (maximum !== undefined) add(`above ${maximum}`, maximum + 1);
  }
  if (schema.type === 'boolean') add('no truth value', 'true');
  if (schema.type !== 'string') return found;
  if (schema.enum) add('none of those named', 'colour');
  if (minLength !== undefined && minLength > 0) add(`shorter than ${minLength}`, 'x'.repeat(minLength - 1));
  if (maxLength !== undefined) add(`longer than ${maxLength}`, 'x'.repeat(maxLength + 1));
  if (schema.format === 'date-time') add('no time', 'tomorrow');
  if (pattern !== undefined) {
    const odd = [...ODD, 'A B', 'k'.repeat(65), 'k'.repeat(256), 'k'.repeat(301)];
    const re = new RegExp(pattern, 'u');
    for (const text of odd.filter((one) => !re.test(one)))
      add(`off the pattern: ${JSON.stringify(text.slice(0, 20))}`, text);
  }
  const bytesMax = schema['x-maxBytes'];
  if (bytesMax !== undefined) add(`more than ${bytesMax} bytes`, '🎟'.repeat(Math.floor(bytesMax / 4) + 1));
  return found;
}

/** Variants of an allowed `value`, each wrong in one place. */
function beyondWithin(schema: Schema, value: unknown, path: string): { what: string; path: string; value: unknown }[] {
  if (Array.isArray(schema.type)) return beyondWithin({ ...schema, type: schema.type[0]! }, value, path);
  const here = (what: string, wrong: unknown, at = path) => ({ what, path: at || '/', value: wrong });
  if (schema.type === 'array') {
    const [first] = value as unknown[];
    const { minItems = 0, maxItems, uniqueItems } = schema;
    return [
      ...(minItems > 0 ? [here(`fewer than ${minItems}`, (value as unknown[]).slice(0, minItems - 1))] : []),
      ...(maxItems === undefined ? [] : [here(`more than ${maxItems}`, Array(maxItems + 1).fill(first))]),
      ...(uniqueItems ? [here('one twice', [first, first])] : []),
      ...beyondWithin(schema.items!, first, `${path}/0`).map((inner) => ({ ...inner, value: [inner.value] })),
    ];
  }
  if (schema.type !== 'object') return beyondValues(schema).map(({ what, value: wrong }) => here(what, wrong));
  const given = (value ?? {}) as Record<string, unknown>;
  const { properties = {}, required = [], additionalProperties: values, propertyNames } = schema;
  if (typeof values === 'object') {
    return [
      here('a value that is no text', { a: 1 }, `${path}/a`),
      here(
        'too many',
        Object.fromEntries(Array.from({ length: schema.maxProperties! + 1 }, (_, at) => [`n${at}`, 'a'])),
      ),
      ...beyondValues(values).map(({ what, value: wrong }) => here(what, { a: wrong }, `${path}/a`)),
      ...beyondValues(propertyNames!).map(({ what, value: wrong }) => here(`a name ${what}`, { [String(wrong)]: 'a' })),
    ];
  }
  return [
    ...(schema.additionalProperties === false
      ? [here('a field too many', { ...given, colour: 'red' }, `${path}/colour`)]
      : []),
    ...required.map((name) => {
      const { [name]: _, ...rest } = given;
      return here('a field too few', rest, `${path}/${name}`);
    }),
    ...Object.entries(properties).flatMap(([name, of]) => {
      const [some] = fc.sample(allowed(of), { numRuns: 1, seed: 1 });
      return [
        ...(of.type?.includes('null') ? [] : [here('null', { ...given, [name]: null }, `${path}/${name}`)]),
        ...beyondWithin(of, given[name] ?? some, `${path}/${name}`).map((inner) => ({
          ...inner,
          value: { ...given, [name]: inner.value },
        })),
      ];
    }),
  ];
}

/** The operation's example requests, each changed in one place to be beyond a bound of the document. */
export function beyondPlans(operation: Operation): Beyond[] {
  const plain = examplePlan(operation);
  const found: Beyond[] = [];
  for (const { name, schema, in: place } of operation.parameters) {
    if (place === 'path') continue;
    for (const { what, value } of beyondValues(schema)) {
      const text = String(value);
      if (!text.isWellFormed() || (place === 'header' && !carried(text))) continue;
      const kept = (pairs: [string, string][]): [string, string][] =>
        pairs.filter(([other]) => other.toLowerCase() !== name.toLowerCase());
      const plan: Plan =
        place === 'query'
          ? { ...plain, query: [...kept(plain.query), [name, text]] }
          : { ...plain, headers: [...kept(plain.headers), [name.toLowerCase(), wire(text)]] };
      found.push({ what: `${name}: ${what}`, path: place === 'query' ? `?${name}` : name, plan });
    }
    if (place === 'query') {
      const [some] = fc.sample(allowed(schema), { numRuns: 1, seed: 1 }).map(String) as [string];
      const query: Plan['query'] = [
        [name, some],
        [name, some],
      ];
      found.push({ what: `${name}: twice`, path: `?${name}`, plan: { ...plain, query } });
    }
  }
  const { body } = operation;
  if (body !== null) {
    const base = plain.body === null ? {} : (plain.body as { json: unknown }).json;
    for (const { what, path, value } of beyondWithin(body.schema, base, '')) {
      found.push({ what: `${path}: ${what}`, path, plan: { ...plain, body: { json: value } } });
    }
  }
  return found;
}

/** A request made of the operation's examples; ids in the path are those of existing objects. */
export function examplePlan(operation: Operation): Plan {
  const exampleOf = ({ example, schema }: Parameter): unknown => example ?? schema.example ?? schema.examples?.[0];
  const pairs = (place: string): [string, string][] =>
    within(operation, place)
      .filter((one) => exampleOf(one) !== undefined)
      .map((one) => [one.name, String(exampleOf(one))]);
  const { body, security } = operation;
  const json = body === null ? undefined : (body.example ?? body.schema.examples?.[0]);
  return {
    method: operation.method,
    params: Object.fromEntries(
      within(operation, 'path').map((one) => [one.name, (exampleOf(one) as string | undefined) ?? 0]),
    ),
    query: pairs('query'),
    headers: pairs('header').map(([name, value]) => [name.toLowerCase(), value]),
    auth: security.includes('admin') ? 'admin' : (security[0] ?? 'nobody'),
    body: json === undefined ? null : { json },
  };
}
