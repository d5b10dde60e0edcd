import { METHODS, request } from 'node:http';
import fc from 'fast-check';
import fastJsonStringify from 'fast-json-stringify';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { sign } from '../../src/base/signature.ts';
import { seeded } from '../property/seed.ts';
import { until } from '../support/fault-wait.ts';
import { allowedPlans, beyondPlans, examplePlan } from '../support/openapi-allowed.ts';
import {
  Contract,
  type Document,
  isCostly,
  type Operation,
  operationsOf,
  type Plan,
  send,
  sentOf,
  type Told,
  type World,
} from '../support/openapi-fuzz.ts';
import { cleanUp, saleBody, startServer, type TestServer } from '../support/server.ts';

/**
 * /openapi.json and the server agree: a request that the schemas allow is never refused as invalid, one beyond a stated bound
 * is, the examples work unchanged, and an undocumented method is 405.
 */
const SECRET = 'whsec-of-the-sandbox';

let server: TestServer;
let document: Document;
let operations: Operation[];
const contract = new Contract();
const world: World = { sales: [], orders: [], webhooks: [], deliveries: [], posts: [], comments: [] };

beforeAll(async () => {
  // METRICS_PUBLIC is on in a demo: everything else is as an admin sees it.
  server = await startServer({ args: ['--demo'], env: { PAYMENT_WEBHOOK_SECRET: SECRET } });
  document = (await server.call('GET', '/openapi.json')).body;
  operations = operationsOf(document);
  await refresh(operations.find(({ path }) => path === '/v1/ops/webhooks'));
});
afterAll(cleanUp);

const nameOf = ({ method, path }: Operation): string => `${method} ${path}`;

/** Creates an open sale with an order; for calls about webhooks, a single endpoint. */
async function refresh(of?: Operation): Promise<void> {
  const items = [{ code: 'voucher-100', name: '100 off', price: { amount: 8000, currency: 'CNY' }, stock: 1000 }];
  const body = saleBody({ perBuyer: 100, items });
  const sale = await server.call('POST', '/v1/sales', { admin: true, body });
  world.sales = [sale.body.id];
  world.orders = [await order()];
  if (/^\/v1\/(posts|comments)\b/.test(of?.path ?? '')) await talk(world);
  if (!of?.path.startsWith('/v1/ops/webhooks')) return;
  const { data } = (await server.call('GET', '/v1/ops/webhooks', { admin: true })).body;
  for (const { id } of data) await server.call('DELETE', `/v1/ops/webhooks/${id}`, { admin: true });
  const hook = { url: 'http://127.0.0.1:9/', events: ['order.reserved'] };
  world.webhooks = [(await server.call('POST', '/v1/ops/webhooks', { admin: true, body: hook })).body.id];
}

async function order(): Promise<string> {
  const path = `/v1/sales/${world.sales[0]}/orders`;
  return (await server.call('POST', path, { buyer: 'alice', body: { item: 'voucher-100' } })).body.id;
}

/** A new post of alice with a comment of hers. */
async function talk(of: World): Promise<void> {
  const post = { title: 'Queue', content: 'Long.' };
  of.posts = [(await server.call('POST', '/v1/posts', { buyer: 'alice', body: post })).body.id];
  const path = `/v1/posts/${of.posts[0]}/comments`;
  of.comments = [(await server.call('POST', path, { buyer: 'alice', body: { content: 'Yes.' } })).body.id];
}

// The server builds a serializer with the first answer of its kind, so that one that cannot be built would fail there.
it('every answer that is declared can be serialized', () => {
  type Responses = Record<string, { content?: Record<string, { schema?: object }> }>;
  const { paths, components } = document as unknown as {
    paths: Record<string, Record<string, { responses?: Responses }>>;
    components: { responses?: Responses };
  };
  const own = Object.values(paths).flatMap((methods) => Object.values(methods).map(({ responses }) => responses ?? {}));
  const declared = [...own, components.responses ?? {}].flatMap((responses) => Object.values(responses));
  const schemas = declared.flatMap(({ content = {} }) => Object.values(content).flatMap(({ schema }) => schema ?? []));
  expect(schemas.length).toBeGreaterThan(operations.length);
  for (const schema of schemas) {
    expect(() => fastJsonStringify({ ...schema, components } as never), JSON.stringify(schema)).not.toThrow();
  }
});

const SIGNATURE = 'doorbuster-signature';

/** Sends the call, with a valid signature where one is required. */
async function sendPlan(of: Operation, plan: Plan, signed = true): Promise<Told> {
  const sent = sentOf(of, plan, world);
  if (signed && of.parameters.some(({ name }) => name === SIGNATURE)) {
    sent.headers[SIGNATURE] = sign(SECRET, sent.body ?? '', Date.now());
  }
  return await send(server.url, sent);
}

interface Refusal {
  code: string;
  errors: { path: string; message: string }[];
}

/**
 * Requests that the document allows and the server refuses as invalid. JSON Schema cannot express these rules: each is between two
 * values, or depends on the state of the shop.
 */
const EXCEPTIONS: { of: RegExp; path: RegExp; message: RegExp; why: string }[] = [
  {
    of: /^(POST \/v1\/sales|PATCH \/v1\/sales\/\{id\})$/,
    path: /^\/closesAt$/,
    message: /^must be after opensAt$/,
    why: 'a rule between two fields; of a PATCH, one of them may be the stored one',
  },
  {
    of: /^POST \/v1\/sales$/,
    path: /^\/items\/\d+\/code$/,
    message: /^another item has the code/,
    why: 'a rule between items: uniqueItems compares whole ones',
  },
  {
    of: /^POST \/v1\/sales\/\{id\}\/items$/,
    path: /^(\/code|)$/,
    message: /^another item has the code|^a sale has at most 200 items$/,
    why: 'depends on the items that there are',
  },
  {
    of: /^(POST \/v1\/sales|PATCH \/v1\/sales\/\{id\}|POST \/v1\/sales\/\{id\}\/items|PATCH \/v1\/sales\/\{id\}\/items\/\{code\})$/,
    path: /^(\/items\/\d+)?\/(image|metadata)$/,
    message: /^must be an https URL$|^must have at most 4096 bytes as JSON$/,
    why: 'no pattern can say what a URL is, and JSON Schema does not count bytes',
  },
  {
    of: /^(POST \/v1\/sales|PATCH \/v1\/sales\/\{id\})$/,
    path: /^\/(opensAt|closesAt|startsAt)$/,
    message: /^must be a time like /,
    why: 'RFC 3339 has leap seconds, and zones that lead out of the years 0000–9999: no date can hold them',
  },
  {
    of: /^POST \/v1\/sales(\/\{id\}\/items)?$/,
    path: /^(\/items\/\d+)?(\/stock)?$/,
    message: /either "stock" or "seats"/,
    why: 'a rule between two fields; the forms of /docs show both',
  },
  {
    of: /^POST \/v1\/sales(\/\{id\}\/items)?$/,
    path: /^(\/items\/\d+)?\/seats\/\d+(\/(section|row|from|to|angle|numbers\/\d+))?$/,
    message: /"\/"|"from"|"x" and "y"|at most 500 seats|given twice|has an entry already|has the seat .* already/,
    why: 'rules between the fields of a row, and between rows; a pattern for a name without a slash would hide what is wrong with it',
  },
  {
    of: /^POST \/v1\/sales\/\{id\}\/orders$/,
    path: /^\/(item|quantity|together|seats|seats\/\d+)$/,
    message:
      /^is missing$|not for seats|differs from the number|named twice|of one item|item of these seats|no numbered seats/,
    why: 'rules between fields, and the item’s kind',
  },
  {
    of: /\/seats\/(un)?block$|\/move$/,
    path: /^\/seats\/\d+$/,
    message: /^is named twice$/,
    why: 'uniqueItems would not say which',
  },
  {
    of: /\/stock$/,
    path: /^\/add$/,
    message: /^would lift the total above/,
    why: 'depends on how many there are',
  },
  {
    of: /\/pay$/,
    path: /^\/method$/,
    message: /^is no payment provider of this shop$/,
    why: 'depends on the providers that this shop has',
  },
  {
    of: /^POST \/v1\/ops\/webhooks$/,
    path: /^\/url$/,
    message: /^there are 20 endpoints already/,
    why: 'depends on how many there are',
  },
  {
    of: /\/confirm$|\/webhooks\/payments\//,
    path: /^\/(reference|id)$/,
    message: /at most 512 bytes/,
    why: 'JSON Schema counts characters: `x-maxBytes` says it to those who read it',
  },
  {
    of: /^POST \/v1\/accounts$/,
    path: /^\/username$/,
    message: /NFKC$|invisible characters$/,
    why: 'no pattern can say that a text is normalized',
  },
  {
    of: /^POST \/v1\/accounts$/,
    path: /^\/(password|email)$/,
    message: /NFKC$|most common|username or the address$|its domain in lower case$/,
    why: 'lengths after normalization, a list of common passwords, and a rule between fields',
  },
];

function excused(of: Operation, { code, errors }: Refusal): boolean {
  // Depends on what the key was used for before.
  if (code === 'idempotency_key_reused') return true;
  if (code !== 'invalid_request' || errors.length === 0) return false;
  return errors.every(({ path, message }) =>
    EXCEPTIONS.some((one) => one.of.test(nameOf(of)) && one.path.test(path) && one.message.test(message)),
  );
}

function shown(of: Operation, plan: Plan, told: Told): string {
  const { path, headers, body } = sentOf(of, plan, world);
  const { authorization: _, ...rest } = headers;
  return `${plan.method} ${path} by ${plan.auth} ${JSON.stringify(rest)} ${body?.slice(0, 400)}\n  told ${told.status} ${told.text.slice(0, 400)}`;
}

it('what the schemas allow is never refused as invalid, but for named exceptions', { timeout: 300_000 }, async () => {
  const { seed, numRuns } = seeded('requests that /openapi.json allows', { short: 12, long: 400 });
  const faults: string[] = [];
  const answers = new Map<number, number>();
  for (const of of operations) {
    await refresh(of);
    const property = fc.asyncProperty(allowedPlans(of), async (plan) => {
      if (!contract.allows(of, plan))
        throw new Error(`the generator made what is not allowed: ${JSON.stringify(plan)}`);
      const told = await sendPlan(of, plan);
      answers.set(told.status, (answers.get(told.status) ?? 0) + 1);
      const refused = told.status === 400 || told.status === 422;
      const fault = refused && !excused(of, JSON.parse(told.text) as Refusal) ? 'refused' : contract.fault(of, told);
      if (fault !== null) throw new Error(`${fault}: ${shown(of, plan, told)}`);
    });
    const runs = isCostly(of) ? Math.ceil(numRuns! / 4) : numRuns!;
    const result = await fc.check(property, { seed: seed!, numRuns: runs, endOnFailure: true });
    if (result.failed) faults.push(`${nameOf(of)}: ${(result.errorInstance as Error).message}`);
  }
  console.log(
    `answers: ${[...answers]
      .sort(([a], [b]) => a - b)
      .map(([status, count]) => `${status}: ${count}`)
      .join(', ')}`,
  );
  expect(faults.join('\n\n')).toBe('');
});

it('one beyond each bound that the document states is refused, and the answer says where', {
  timeout: 60_000,
}, async () => {
  const faults: string[] = [];
  let sent = 0;
  for (const of of operations) {
    for (const { what, path, plan } of beyondPlans(of)) {
      sent++;
      const ofSignature = path === SIGNATURE;
      const told = await sendPlan(of, plan, !ofSignature);
      // The signature is checked before anything else.
      if (ofSignature && told.status === 401) continue;
      const { errors = [] } = told.status === 422 ? (JSON.parse(told.text) as Refusal) : {};
      const named = errors.some((one) => one.path.toLowerCase() === path.toLowerCase());
      if (!named) faults.push(`${nameOf(of)}, ${what}: ${shown(of, plan, told)}`);
    }
  }
  expect(faults.join('\n\n')).toBe('');
  // Enough of each part of a request, or this would prove little.
  expect(sent).toBeGreaterThan(300);
});

it('each text, number and list that may be sent has a bound', () => {
  const boundless: string[] = [];
  const look = (schema: Operation['parameters'][number]['schema'], at: string): void => {
    const { maxLength, pattern, format, maximum, minimum, maxItems, additionalProperties: others } = schema;
    const type = Array.isArray(schema.type) ? schema.type[0] : schema.type;
    const ended = pattern !== undefined && !/[*+]/.test(pattern.replaceAll(/\[[^\]]*\]/g, ''));
    if (type === 'string' && !schema.enum && maxLength === undefined && !ended && format !== 'date-time')
      boundless.push(at);
    if ((type === 'integer' || type === 'number') && (maximum === undefined || minimum === undefined))
      boundless.push(at);
    if (type === 'array' && maxItems === undefined) boundless.push(at);
    if (type === 'object' && others !== false && schema.maxProperties === undefined)
      boundless.push(`${at} (other fields)`);
    if (typeof others === 'object') look(others, `${at}.*`);
    if (schema.propertyNames) look(schema.propertyNames, `${at} (names)`);
    if (schema.items) look(schema.items, `${at}[]`);
    for (const [name, of] of Object.entries(schema.properties ?? {})) look(of, `${at}.${name}`);
  };
  for (const of of operations) {
    if (of.body) look(of.body.schema, `${nameOf(of)} body`);
    for (const { name, schema, in: place } of of.parameters) {
      // As many as fit into the headers.
      if (name !== SIGNATURE) look(schema, `${nameOf(of)} ${place} ${name}`);
    }
  }
  expect(boundless).toEqual([]);
});

describe('examples', () => {
  /** Prepares what an operation's example needs. Otherwise an id in the path is that of the new sale or order. */
  const NEEDED: Record<string, () => Promise<void>> = {
    'POST /v1/orders/{id}/refund': async () => {
      await server.call('POST', `/v1/orders/${world.orders[0]}/pay`, { buyer: 'alice', body: { method: 'sandbox' } });
    },
    'POST /v1/orders/{id}/move': async () => {
      const create = operations.find((one) => nameOf(one) === 'POST /v1/sales')!;
      const { id } = JSON.parse((await sendPlan(create, examplePlan(create))).text) as { id: string };
      const body = { seats: ['Stalls/A/1'] };
      world.orders = [(await server.call('POST', `/v1/sales/${id}/orders`, { buyer: 'alice', body })).body.id];
    },
    'POST /v1/sessions': async () => {
      const create = operations.find((one) => nameOf(one) === 'POST /v1/accounts')!;
      // Registered by its own example, or now.
      await sendPlan(create, examplePlan(create));
    },
    'POST /v1/ops/webhooks/deliveries/{id}/redeliver': async () => {
      await order();
      await until('there is a delivery', 5_000, async () => {
        const path = `/v1/ops/webhooks/${world.webhooks[0]}/deliveries`;
        world.deliveries = (await server.call('GET', path, { admin: true })).body.data.map(
          ({ id }: { id: string }) => id,
        );
        return world.deliveries.length > 0;
      });
    },
  };

  /** An embedded shop has no dead letters, whatever their ids. */
  const ABSENT = /^\w+ \/v1\/ops\/dead-letters\/\{id\}/;

  it('each works as it is, from an empty shop: whoever tries a call in /docs gets an answer that is no refusal', async () => {
    const faults: string[] = [];
    for (const of of operations.filter((one) => !ABSENT.test(nameOf(one)))) {
      await refresh(of);
      // The example of an order orders the item of the example sale.
      if (of.path.startsWith('/v1/sales/')) {
        const create = operations.find((one) => nameOf(one) === 'POST /v1/sales')!;
        world.sales = [(JSON.parse((await sendPlan(create, examplePlan(create))).text) as { id: string }).id];
      }
      await NEEDED[nameOf(of)]?.();
      const plan = examplePlan(of);
      const told = await sendPlan(of, plan);
      if (told.status >= 400) faults.push(`${nameOf(of)}: ${shown(of, plan, told)}`);
    }
    expect(faults.join('\n\n')).toBe('');
  });

  it('each body that may say something has one, and what it says is allowed: without it /docs would make something up', () => {
    for (const of of operations.filter(({ body }) => body !== null)) {
      const plan = examplePlan(of);
      if (Object.keys(of.body!.schema.properties ?? {}).length > 0)
        expect([nameOf(of), plan.body]).not.toEqual([nameOf(of), null]);
      expect([nameOf(of), contract.allows(of, plan)]).toEqual([nameOf(of), true]);
    }
  });
});

describe('methods', () => {
  /** Sends any method, which fetch cannot. */
  const ask = (method: string, path: string): Promise<{ status: number; allow: string | undefined; type: string }> =>
    new Promise((resolve, reject) => {
      const call = request(server.url + path, { method, agent: false }, (response) => {
        const { allow, 'content-type': type = '' } = response.headers;
        resolve({ status: response.statusCode!, allow, type });
        response.destroy();
      });
      call.on('error', reject);
      call.end();
    });
  /** CONNECT asks a proxy for a tunnel, and has no path. */
  const methods = METHODS.filter((method) => method !== 'CONNECT');

  it('one that a path does not support is 405 with Allow, whichever it is', { timeout: 60_000 }, async () => {
    const paths = new Map<string, Set<string>>();
    for (const { method, path } of operations) {
      const filled = path.replaceAll(/\{\w+\}/g, '1');
      paths.set(filled, (paths.get(filled) ?? new Set()).add(method));
    }
    const pages = ['/', '/board.js', '/board.css', '/openapi.json', '/docs', '/docs/', '/docs/json'];
    for (const page of [...pages, '/docs/static/swagger-ui.css', '/docs/static/swagger-initializer.js']) {
      paths.set(page, new Set(['GET']));
    }
    const faults: string[] = [];
    for (const [path, declared] of paths) {
      // A stream does not support HEAD.
      const taken = declared.has('GET') && !path.endsWith('/events') ? [...declared, 'HEAD'] : [...declared];
      const allow = taken.toSorted().join(', ');
      await Promise.all(
        methods
          .filter((method) => !taken.includes(method))
          .map(async (method) => {
            const told = await ask(method, path);
            const right = told.status === 405 && told.allow === allow && /problem\+json/.test(told.type);
            if (!right) faults.push(`${method} ${path}: ${told.status}, Allow: ${told.allow} instead of ${allow}`);
          }),
      );
    }
    expect(faults).toEqual([]);
  });

  it('an unknown path is 404 with any of them', async () => {
    // QUERY without a content type is 400 first (RFC 10008).
    for (const method of methods.filter((one) => one !== 'QUERY')) {
      expect([method, (await ask(method, '/v1/nope')).status]).toEqual([method, 404]);
    }
  });
});
