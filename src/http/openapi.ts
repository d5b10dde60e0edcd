import type { FastifyInstance } from 'fastify';
import { VERSION } from '../base/version.ts';
import { Buyer, Comment, Order, Post, Sale } from '../contract/schemas.ts';

/** The Fastify decorator that returns our document: not the usual name, which the host application may use. */
const NAME = 'doorbusterOpenApi';

/** Options for @fastify/swagger, which generates the document from the routes' schemas. */
export const OPENAPI = {
  openapi: openApiHead(),
  transform: withSecurity,
  transformObject: finished,
  decorator: NAME,
} as const;

export function openApiOf(app: FastifyInstance): object {
  return (app as unknown as Record<typeof NAME, () => object>)[NAME]();
}

function finished(document: { swaggerObject?: unknown; openapiObject?: unknown }): never {
  const { paths = {}, components, ...head } = document.openapiObject as OpenApi;
  bodiesThatMayBeMissing(paths);
  buyersActedFor(paths);
  return { ...head, ...withShared(paths, components) } as never;
}

/** A body without required members may be omitted; the generator marks every body as required. */
function bodiesThatMayBeMissing(paths: OpenApiPaths): void {
  for (const { post } of Object.values(paths)) {
    const schema = post?.requestBody?.content?.['application/json']?.schema;
    if (schema && (schema.required ?? []).length === 0 && !schema.minProperties) post!.requestBody!.required = false;
  }
}

const ACTED_FOR = 'Doorbuster-Buyer';

/** Adds `Doorbuster-Buyer` to every operation that accepts an admin key (auth.ts). */
function buyersActedFor(paths: OpenApiPaths): void {
  for (const operation of Object.values(paths).flatMap((methods) => Object.values(methods))) {
    const parameters = operation.parameters ?? [];
    if (!operation.security?.some((one) => 'admin' in one)) continue;
    if (parameters.some(({ name }) => name?.toLowerCase() === ACTED_FOR.toLowerCase())) continue;
    operation.parameters = [...parameters, { $ref: `#/components/parameters/${ACTED_FOR}` }];
  }
}

const PARAMETERS = {
  [ACTED_FOR]: {
    name: ACTED_FOR,
    in: 'header',
    required: false,
    description: 'With an admin key: the buyer to act for (UTF-8)',
    schema: Buyer,
  },
};

const SHARED = { Order, Sale, Post, Comment };

/** Moves schemas and responses that many routes share into components: without that the document is ten times as large. */
function withShared(paths: OpenApiPaths, components: object | undefined): object {
  const names = new Map(Object.entries(SHARED).map(([name, schema]) => [JSON.stringify(schema), name]));
  const named = (value: unknown): unknown => {
    if (Array.isArray(value)) return value.map(named);
    if (value === null || typeof value !== 'object') return value;
    const { description, ...schema } = value as { description?: string };
    const name = 'properties' in schema ? names.get(JSON.stringify(schema)) : undefined;
    if (name === undefined) return Object.fromEntries(Object.entries(value).map(([key, of]) => [key, named(of)]));
    return { $ref: `#/components/schemas/${name}`, ...(description !== undefined && { description }) };
  };
  const responses: Record<string, unknown> = {};
  const answer = (response: OpenApiResponse): unknown => {
    const codes = response.content?.['application/problem+json']?.schema?.properties?.code?.enum;
    if (codes === undefined) return named(response);
    const name = codes.join('-');
    responses[name] ??= named(response);
    return { $ref: `#/components/responses/${name}` };
  };
  const each = <T, U>(of: Record<string, T>, map: (value: T) => U): Record<string, U> =>
    Object.fromEntries(Object.entries(of).map(([key, value]) => [key, map(value)]));
  const smaller = each(paths, (methods) =>
    each(methods, (operation) => ({ ...operation, responses: each(operation.responses, answer) })),
  );
  return { components: { ...components, parameters: PARAMETERS, schemas: SHARED, responses }, paths: smaller };
}

interface OpenApi {
  paths?: OpenApiPaths;
  components?: object;
}

type OpenApiPaths = Record<string, Record<string, OpenApiOperation>>;

interface OpenApiOperation {
  parameters?: { name?: string; $ref?: string }[];
  security?: Record<string, unknown>[];
  requestBody?: OpenApiBody;
  responses: Record<string, OpenApiResponse>;
}

interface OpenApiResponse {
  content?: Record<string, { schema?: { properties?: { code?: { enum?: string[] } } } }>;
}

interface OpenApiBody {
  required?: boolean;
  content?: Record<string, { schema?: { required?: string[]; minProperties?: number } }>;
}

function openApiHead() {
  return {
    openapi: '3.1.0',
    info: {
      title: 'Doorbuster',
      version: VERSION,
      description:
        'Sells scarce things to a crowd: never oversells, keeps a buyer to their limit, loses no order it accepted.\n\n' +
        'To send requests from this page press Authorize. In a demo, *admin* is the key that `npm start` printed, and ' +
        '*buyer* is a token from `POST /v1/demo/tokens`.',
    },
    components: {
      securitySchemes: {
        buyer: {
          type: 'http' as const,
          scheme: 'bearer',
          bearerFormat: 'JWT',
          description: 'HS256; `sub` is the buyer',
        },
        admin: { type: 'http' as const, scheme: 'bearer', description: 'An admin key' },
      },
    },
  };
}

/**
 * A route's schema says in `x-security` who may call it; only our document turns that into `security`. The host application's
 * own generator also sees our routes and would look for security schemes that its document does not define.
 */
function withSecurity({ schema, url }: { schema: unknown; url: string }): { schema: never; url: string } {
  const { 'x-security': security, ...rest } = (schema ?? {}) as Record<string, unknown>;
  return { schema: (security === undefined ? schema : { ...rest, security }) as never, url };
}
