import { Agent, type IncomingHttpHeaders, request } from 'node:http';
import type { ValidateFunction } from 'ajv';
import { Ajv2020 } from 'ajv/dist/2020.js';
import addFormats from 'ajv-formats';
import fc from 'fast-check';
import { forge } from './openapi-wire.ts';
import { ADMIN_KEY, token } from './server.ts';

/**
 * A fuzzer that knows only the OpenAPI document: for every operation it generates requests that match the schemas and requests
 * that do not, and compares every answer with the document. The only additions are a few `hints` for values with a meaning, such
 * as an existing item.
 */
export interface Schema {
  type?: string | string[];
  properties?: Record<string, Schema>;
  required?: string[];
  additionalProperties?: boolean | Schema;
  propertyNames?: Schema;
  not?: Schema;
  maxProperties?: number;
  items?: Schema;
  minItems?: number;
  maxItems?: number;
  minimum?: number;
  maximum?: number;
  minLength?: number;
  maxLength?: number;
  pattern?: string;
  format?: string;
  enum?: unknown[];
  const?: unknown;
  default?: unknown;
  example?: unknown;
  examples?: unknown[];
  uniqueItems?: boolean;
  anyOf?: Schema[];
  'x-maxBytes'?: number;
}

/** Operations that hash a password: on purpose each request costs as much as hundreds of others, so a few must do. */
export function isCostly({ path }: Pick<Operation, 'path'>): boolean {
  return path === '/v1/accounts' || path === '/v1/sessions';
}

export interface Operation {
  method: string;
  path: string;
  parameters: {
    name: string;
    in: 'path' | 'query' | 'header';
    required?: boolean;
    example?: unknown;
    schema: Schema;
  }[];
  body: { schema: Schema; required: boolean; example?: unknown } | null;
  /** Names of the accepted security schemes. */
  security: string[];
  responses: Record<string, { content?: Record<string, { schema?: Schema }> }>;
}

export interface Document {
  paths: Record<string, Record<string, unknown>>;
}

/** The document with every reference replaced by a copy of its target. */
function resolved(of: unknown, document: Document): unknown {
  if (Array.isArray(of)) return of.map((one) => resolved(one, document));
  if (of === null || typeof of !== 'object') return of;
  const { $ref, ...rest } = of as { $ref?: unknown };
  if (typeof $ref !== 'string') {
    return Object.fromEntries(Object.entries(of).map(([key, value]) => [key, resolved(value, document)]));
  }
  const steps = $ref.split('/').slice(1);
  const target = steps.reduce<unknown>((at, step) => (at as Record<string, unknown> | undefined)?.[step], document);
  if (target === undefined) throw new Error(`the document refers to ${$ref}, and has none`);
  return { ...(resolved(target, document) as object), ...rest };
}

export function operationsOf(document: Document): Operation[] {
  return Object.entries(resolved(document.paths, document) as Document['paths']).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, raw]) => {
      const { parameters, requestBody, security, responses } = raw as {
        parameters?: Operation['parameters'];
        requestBody?: { required?: boolean; content: Record<string, { schema: Schema; example?: unknown }> };
        security?: Record<string, unknown>[];
        responses: Operation['responses'];
      };
      const { schema, example } = requestBody?.content['application/json'] ?? {};
      return {
        method: method.toUpperCase(),
        path,
        parameters: parameters ?? [],
        body: schema ? { schema, example, required: requestBody?.required ?? false } : null,
        security: (security ?? []).flatMap((one) => Object.keys(one)),
        responses,
      };
    }),
  );
}

// What is sent

/** A generated request. Known ids are indices until it is sent: they refer to objects that exist then. */
export interface Plan {
  method: string;
  params: Record<string, number | string>;
  query: [string, string][];
  auth: string;
  headers: [string, string][];
  body: { json: unknown } | { raw: string } | null;
}

export interface Sent {
  method: string;
  path: string;
  headers: Record<string, string>;
  body: string | null;
}

export interface Told {
  status: number;
  headers: IncomingHttpHeaders;
  text: string;
}

/** Ids and codes that exist on the server. */
export interface World {
  sales: string[];
  orders: string[];
  /** Endpoints of webhooks, and deliveries of another one. */
  webhooks: string[];
  deliveries: string[];
  /** Of alice. */
  posts: string[];
  comments: string[];
}

export const BUYERS = ['alice', 'bob', 'carol'];

const AUTHS: Record<string, () => string | null> = {
  admin: () => ADMIN_KEY,
  ...Object.fromEntries(BUYERS.map((buyer) => [buyer, () => token(buyer)])),
  nobody: () => null,
  expired: () => forge({ sub: 'alice', exp: 1 }),
  forged: () => forge({ sub: 'alice' }, { secret: 'guessed' }),
  'alg none': () => forge({ sub: 'alice' }, { alg: 'none', signature: '' }),
  'no sub': () => forge({}),
  garbage: () => '....',
};

const JUNK: unknown[] = [
  ...[null, true, false, 0, -0, 1, -1, 0.5, 101, 201, 1_000_001, 10 ** 12 + 1, 2 ** 53, 1e308, -1e308],
  ...['', ' ', 'x', 'x'.repeat(300), '0', '-1', '\u0000', '\ud800', ' a ', '🎟'.repeat(201), 'constructor'],
  ...['2016-12-31T23:59:60Z', '2026-02-30T00:00:00Z', 'tomorrow'],
  ...[[], [[]], {}, { a: {} }, [null]],
];

const RAW_BODIES = [
  ...['', ' ', '{', '}', '[]', 'null', '"', '{"a":', '{"__proto__":{}}', '{"item":"voucher"', 'item=voucher', '\u0000'],
  ...[
    '{"item":"voucher","item":7}',
    '{"constructor":{"prototype":{}}}',
    `${' '.repeat(65 * 1024)}{}`,
    '1e999',
    '\ufeff{}',
  ],
];

const ODD_PARAMS = [
  ...[
    '',
    '0',
    '1',
    '-1',
    'abc',
    '%',
    '%ff',
    '%00',
    '..',
    '.',
    '~0',
    '%2f',
    '9223372036854775807',
    '9223372036854775808',
  ],
  ...[
    '18446744073709551616',
    '1e3',
    '0x10',
    'null',
    'undefined',
    '__proto__',
    '1'.repeat(99),
    '1'.repeat(101),
    '+1',
    '1%20',
  ],
];

/** Valid by RFC 3339; in UTC the first two have no year of four digits. */
const DATES = [
  '9999-12-31T23:59:59-23:59',
  '0000-01-01T00:00:00+23:59',
  '0000-01-01T00:00:00Z',
  '9999-12-31T23:59:59.999Z',
  '1970-01-01T00:00:00.0001+14:00',
  '2026-06-30t12:00:00z',
];

/** Values with a meaning for the shop. Half of the time any value that the schema allows is used instead. */
const HINTS: Record<string, fc.Arbitrary<unknown>> = {
  item: fc.constantFrom('voucher', 'other'),
  code: fc.constantFrom('voucher', 'other'),
  quantity: fc.constantFrom(1, 2, 100),
  seats: fc.constantFrom(['S/R/1'], ['S/R/2'], ['S/R/3'], ['S/R/4', 'S/R/5']),
  version: fc.constantFrom(1, 2, 3),
  add: fc.integer({ min: -20, max: 20 }),
  opensAt: fc.constantFrom('2020-01-01T00:00:00.000Z', '2098-01-01T00:00:00+08:00'),
  closesAt: fc.constant('2099-01-01T00:00:00.000Z'),
  limit: fc.constantFrom(1, 2, 200),
  buyer: fc.constantFrom(...BUYERS),
  user: fc.constantFrom(...BUYERS),
  method: fc.constant('sandbox'),
  // Without the tokens that delay the answer.
  token: fc.constantFrom('ok', 'declined'),
  // A port on which nobody listens.
  url: fc.constant('http://127.0.0.1:9/'),
};

/** Any value that the schema allows. */
export function valid(schema: Schema, name = ''): fc.Arbitrary<unknown> {
  const bySchema = validBySchema(schema);
  return HINTS[name] ? fc.oneof(HINTS[name], bySchema) : bySchema;
}

function validBySchema(schema: Schema): fc.Arbitrary<unknown> {
  if (schema.const !== undefined) return fc.constant(schema.const);
  if (schema.enum) return fc.constantFrom(...schema.enum);
  if (schema.anyOf) return fc.oneof(...schema.anyOf.map((one) => valid(one)));
  const type = Array.isArray(schema.type) ? schema.type[0] : schema.type;
  switch (type) {
    case 'object': {
      const { additionalProperties: values, required = [] } = schema;
      if (typeof values === 'object')
        return fc.dictionary(text(schema.propertyNames!).filter(isName), valid(values), { maxKeys: 3 });
      const fields = Object.entries(schema.properties ?? {}).map(([key, of]) => [key, valid(of, key)] as const);
      return fc.record(Object.fromEntries(fields), { requiredKeys: required });
    }
    case 'array': {
      const minLength = schema.minItems ?? 0;
      const maxLength = Math.min(schema.maxItems ?? 3, 3);
      return fc.array(valid(schema.items!), { minLength, maxLength });
    }
    case 'integer': {
      const min = schema.minimum ?? Number.MIN_SAFE_INTEGER;
      const max = schema.maximum ?? Number.MAX_SAFE_INTEGER;
      return fc.oneof(fc.integer({ min, max }), fc.constantFrom(min, max));
    }
    case 'string':
      return text(schema);
    case 'number': {
      const { minimum: min, maximum: max } = schema as { minimum: number; maximum: number };
      return fc.double({ min, max, noNaN: true });
    }
    case 'boolean':
      return fc.boolean();
    case 'null':
      return fc.constant(null);
    default:
      throw new Error(`the fuzz cannot make a ${JSON.stringify(schema)}: teach it`);
  }
}

/** No schema's `not` is understood here but this one. */
export function isName(name: string): boolean {
  return name !== '__proto__';
}

function text({ pattern, format, minLength = 0, maxLength = 50 }: Schema): fc.Arbitrary<string> {
  if (pattern !== undefined) {
    const fitting = fc.stringMatching(new RegExp(pattern, 'u'));
    return maxLength > 50 ? fitting : fitting.filter((some) => [...some].length <= maxLength);
  }
  if (format === 'date-time') {
    return fc.oneof(
      fc.date({ noInvalidDate: true, min: new Date(0), max: new Date(4e12) }).map((date) => date.toISOString()),
      fc.constantFrom(...DATES),
    );
  }
  return fc.string({ unit: 'grapheme', minLength, maxLength });
}

/** A valid value with something wrong: a wrong type, an extreme, a field too many or too few, anywhere inside. */
function mutated(schema: Schema): fc.Arbitrary<unknown> {
  const wrong = fc.record({
    at: fc.nat(50),
    how: fc.constantFrom('junk', 'junk', 'junk', 'delete', 'add', 'wrap'),
    junk: fc.constantFrom(...JUNK),
  });
  return fc.tuple(valid(schema), fc.array(wrong, { minLength: 1, maxLength: 3 })).map(([value, faults]) => {
    const root = { value: structuredClone(value) };
    for (const { at, how, junk } of faults) spoil(root, at, how, structuredClone(junk));
    return root.value;
  });
}

function spoil(root: { value: unknown }, at: number, how: string, junk: unknown): void {
  const places: [Record<string, unknown>, string][] = [];
  const walk = (parent: Record<string, unknown>, key: string): void => {
    places.push([parent, key]);
    const child = parent[key];
    if (child !== null && typeof child === 'object') {
      for (const inner of Object.keys(child)) walk(child as Record<string, unknown>, inner);
    }
  };
  walk(root, 'value');
  const [parent, key] = places[at % places.length]!;
  const child = parent[key];
  if (how === 'delete' && parent !== root) delete parent[key];
  else if (how === 'wrap') parent[key] = [child];
  else if (how === 'add' && child !== null && typeof child === 'object')
    (child as Record<string, unknown>).extra = junk;
  else parent[key] = junk;
}

const HEADER_TEXT = fc.string({
  unit: fc.oneof(
    fc.integer({ min: 0x20, max: 0x7e }).map((code) => String.fromCharCode(code)),
    fc.integer({ min: 0xa0, max: 0xff }).map((code) => String.fromCharCode(code)),
  ),
  maxLength: 300,
});

const HEADERS: Record<string, fc.Arbitrary<string>> = {
  'idempotency-key': fc.oneof(
    fc.constantFrom('k1', 'k2', 'k3', '', '\t', 'é', 'k'.repeat(255), 'k'.repeat(256)),
    HEADER_TEXT,
  ),
  'doorbuster-buyer': fc.oneof(fc.constantFrom(...BUYERS, '', 'b'.repeat(129)), HEADER_TEXT),
  accept: fc.constantFrom('*/*', 'text/csv', 'application/json', 'text/event-stream', 'image/png', 'nonsense', ''),
  'if-none-match': fc.constantFrom('*', '"x"', 'W/"x"', ',', ''),
  'last-event-id': fc.constantFrom('0', '1', '1.1', '-1', '9.9', 'x', ''),
  'content-type': fc.constantFrom(
    'application/json; charset=utf-8',
    'text/plain',
    'multipart/form-data',
    'nonsense',
    '',
  ),
  origin: fc.constantFrom('https://shop.example', 'null'),
  'x-forwarded-for': fc.constantFrom('10.0.0.1', 'nonsense'),
  // Rarely gzip, because it is always refused.
  'content-encoding': fc.constantFrom('gzip', 'identity', 'identity', 'identity'),
};

/** Requests to one operation. Each part is valid most of the time, so that about a third of them is valid as a whole. */
export function plans(operation: Operation): fc.Arbitrary<Plan> {
  const mostly = <T>(right: fc.Arbitrary<T>, wrong: fc.Arbitrary<T>): fc.Arbitrary<T> =>
    fc.oneof({ arbitrary: right, weight: 7 }, { arbitrary: wrong, weight: 1 });
  const params = operation.parameters
    .filter((one) => one.in === 'path')
    .map(({ name }) => [
      name,
      name === 'code'
        ? mostly<number | string>(fc.constantFrom('voucher', 'other'), fc.constantFrom(...ODD_PARAMS))
        : mostly<number | string>(
            fc.nat(9),
            fc.oneof(fc.constantFrom(...ODD_PARAMS), fc.string({ unit: 'grapheme' }).map(encode)),
          ),
    ]);
  const declared = operation.parameters.filter((one) => one.in === 'query');
  const anyQuery = [
    ...declared.map(({ name, schema }) =>
      fc.tuple(fc.constant(name), mostly(valid(schema, name).map(String), fc.constantFrom(...JUNK).map(String))),
    ),
  ];
  const oddQuery = fc.tuple(fc.constantFrom('limit', 'cursor', 'colour', '__proto__', 'a[]', ''), fc.string());
  const { body, security } = operation;
  const welcome = security.includes('buyer') ? [...BUYERS, 'admin'] : ['admin'];
  const someBody: fc.Arbitrary<Plan['body']> =
    body === null
      ? mostly<Plan['body']>(
          fc.constant(null),
          fc.constantFrom(...RAW_BODIES).map((raw) => ({ raw })),
        )
      : fc.oneof(
          { arbitrary: valid(body.schema).map((json) => ({ json })), weight: 5 },
          { arbitrary: mutated(body.schema).map((json) => ({ json })), weight: 4 },
          { arbitrary: fc.constantFrom(...RAW_BODIES).map((raw) => ({ raw })), weight: 1 },
          { arbitrary: fc.constant(null), weight: 1 },
        );
  return fc.record({
    method: fc.oneof(
      { arbitrary: fc.constant(operation.method), weight: 30 },
      { arbitrary: fc.constantFrom('PUT', 'DELETE', 'PATCH', 'POST', 'GET'), weight: 1 },
    ),
    params: fc.record(Object.fromEntries(params) as Record<string, fc.Arbitrary<number | string>>),
    query: mostly(
      anyQuery.length === 0 ? fc.constant([]) : fc.array(fc.oneof(...anyQuery), { maxLength: 3 }),
      fc.array(oddQuery, { minLength: 1, maxLength: 2 }),
    ),
    auth: mostly(fc.constantFrom(...welcome), fc.constantFrom(...Object.keys(AUTHS))),
    headers: fc.array(fc.oneof(...Object.entries(HEADERS).map(([name, value]) => fc.tuple(fc.constant(name), value))), {
      maxLength: 2,
    }),
    body: someBody,
  });
}

/** The request as sent, with ids and tokens filled in. */
export function sentOf(operation: Operation, plan: Plan, world: World): Sent {
  const kind = /^\/v1\/(?:ops\/webhooks\/)?(orders|deliveries|posts|comments)\b|^\/v1\/ops\/(webhooks)\b/.exec(
    operation.path,
  );
  const known = world[(kind?.[1] ?? kind?.[2] ?? 'sales') as keyof World];
  const path = operation.path.replaceAll(/\{(\w+)\}/g, (_, name: string) => {
    const value = plan.params[name]!;
    return typeof value === 'number' ? (known[value % known.length] ?? '1') : value;
  });
  const query = plan.query.map(([name, value]) => `${encode(name)}=${encode(value)}`).join('&');
  const bearer = (AUTHS[plan.auth] ?? AUTHS.nobody!)();
  const body = plan.body === null ? null : 'raw' in plan.body ? plan.body.raw : JSON.stringify(plan.body.json);
  return {
    method: plan.method,
    path: query === '' ? path : `${path}?${query}`,
    headers: {
      // Explicit, because for GET and DELETE node:http would send the bytes without their length.
      ...(body !== null && { 'content-type': 'application/json', 'content-length': String(Buffer.byteLength(body)) }),
      ...Object.fromEntries(plan.headers),
      ...(bearer !== null && { authorization: `Bearer ${bearer}` }),
    },
    body,
  };
}

function encode(text: string): string {
  return encodeURIComponent(text.toWellFormed());
}

const agent = new Agent({ keepAlive: true, maxSockets: 8 });

/** Sends the request unchanged. Reads an event stream until its first events have arrived. */
export function send(url: string, { method, path, headers, body }: Sent): Promise<Told> {
  return new Promise((resolve, reject) => {
    const { hostname, port } = new URL(url);
    const call = request({ agent, hostname, port, method, path, headers }, (response) => {
      let received = '';
      const done = (): void => resolve({ status: response.statusCode!, headers: response.headers, text: received });
      response.setEncoding('utf8');
      response.on('data', (chunk: string) => {
        received += chunk;
        if (!/^text\/event-stream/.test(response.headers['content-type'] ?? '')) return;
        done();
        response.destroy();
      });
      response.on('end', done);
      response.on('error', reject);
    });
    call.on('error', reject);
    call.end(body === null ? undefined : Buffer.from(body));
  });
}

// What is documented

/** Compares answers with the document. */
export class Contract {
  readonly #ajv = new Ajv2020({ strict: false, allErrors: true, formats: { uri: true } });
  readonly #compiled = new Map<object, ValidateFunction>();

  constructor() {
    (addFormats as unknown as (ajv: unknown, formats: string[]) => void)(this.#ajv, ['date-time']);
  }

  /** What is wrong with an answer; null if it is documented. */
  fault(operation: Operation, told: Told): string | null {
    const { status } = told;
    if (status >= 500) return `${status}: a failure`;
    const documented = operation.responses[status];
    if (documented === undefined) return `${status} is not documented`;
    const type = (told.headers['content-type'] ?? '').split(';')[0]!.trim();
    if (documented.content === undefined) return told.text === '' ? null : `${status}: a body is not documented`;
    const media = documented.content[type];
    if (media === undefined) return `${status}: the content type "${type}" is not documented`;
    let body: unknown = told.text;
    if (/\bjson\b/.test(type)) {
      try {
        body = JSON.parse(told.text);
      } catch {
        return `${status}: the body is not JSON`;
      }
    }
    const validate = this.#validator(media.schema ?? {}, true);
    if (validate(body)) return null;
    return `${status}: the body is not as documented: ${this.#ajv.errorsText(validate.errors)}`;
  }

  /** True if the JSON body and the declared query parameters match the document. */
  allows(operation: Operation, plan: Plan): boolean {
    const { body } = operation;
    if (body !== null) {
      if (plan.body === null) return !body.required;
      if ('json' in plan.body) {
        // As it arrives: without values that JSON cannot represent.
        const arrived = JSON.parse(JSON.stringify(plan.body.json) ?? 'null') as unknown;
        if (!this.#validator(body.schema, false)(arrived)) return false;
      }
    }
    return plan.query.every(([name, value]) => {
      const declared = operation.parameters.find((one) => one.in === 'query' && one.name === name);
      if (declared === undefined) return true;
      const text = value.toWellFormed();
      // A text that is written as a whole number counts as a number.
      const read = declared.schema.type === 'integer' && /^(0|-?[1-9]\d*)$/.test(text) ? Number(text) : text;
      return this.#validator(declared.schema, false)(read);
    });
  }

  /** `sealed`: every field must be documented, unless the schema allows others. */
  #validator(schema: Schema, sealed: boolean): ValidateFunction {
    let validate = this.#compiled.get(schema);
    if (validate === undefined) {
      validate = this.#ajv.compile(sealed ? (seal(schema) as object) : schema);
      this.#compiled.set(schema, validate);
    }
    return validate;
  }
}

function seal(schema: unknown): unknown {
  if (Array.isArray(schema)) return schema.map(seal);
  if (schema === null || typeof schema !== 'object') return schema;
  const sealed = Object.fromEntries(Object.entries(schema).map(([key, value]) => [key, seal(value)]));
  if ('properties' in sealed && !('additionalProperties' in sealed)) sealed.additionalProperties = false;
  return sealed;
}
