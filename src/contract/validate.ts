import { Ajv, type ErrorObject, type ValidateFunction } from 'ajv';
import addFormats from 'ajv-formats';
import { ID_PATTERN } from '../base/ids.ts';
import { EMAIL_PATTERN } from '../model/account.ts';
import { BOUNDS, type Fault } from '../model/sale.ts';
import { CONTENT_PATTERN, HTTPS_PATTERN, NAME_PATTERN, TEXT_PATTERN } from '../model/text.ts';
import { sizeOf } from './size.ts';

/** A bad body may have thousands of faults; the first few are enough. */
const FAULTS_MAX = 20;
/**
 * All faults are looked for only in a value that has no more parts than a valid one may have, and these: Ajv would make an object for
 * each of thousands of unknown fields, which takes milliseconds.
 */
const PARTS_ANYWAY = 64;
const PARTS_MAX = 2000;

/** The years that ISO 8601 writes with four digits. A time zone may shift a time out of them. */
const TIME_MS_MIN = Date.parse('0000-01-01T00:00:00.000Z');
const TIME_MS_MAX = Date.parse('9999-12-31T23:59:59.999Z');

/**
 * Our own Ajv instead of Fastify's, which turns "1" into 1 and silently drops unknown fields. This one refuses wrong types and
 * unknown fields.
 */
function ajvWith(allErrors: boolean): Ajv {
  const ajv = new Ajv({ allErrors, useDefaults: true, coerceTypes: false, removeAdditional: false, strict: false });
  (addFormats as unknown as (ajv: Ajv, formats: string[]) => void)(ajv, ['date-time']);
  const dateTime = ajv.formats['date-time'] as { validate: (text: string) => boolean };
  ajv.addFormat('date-time', {
    type: 'string',
    validate: (text: string) => {
      // A leap second is valid in RFC 3339, but a JavaScript date cannot represent it: NaN is out of range.
      const ms = Date.parse(text);
      return dateTime.validate(text) && ms >= TIME_MS_MIN && ms <= TIME_MS_MAX;
    },
  });
  // Documents the kind of text; webhooks/target.ts validates it.
  ajv.addFormat('uri', true);
  /** JSON Schema counts characters, but databases count bytes. */
  ajv.addKeyword({
    keyword: 'x-maxBytes',
    type: 'string',
    schemaType: 'number',
    validate: (bytesMax: number, text: string) => Buffer.byteLength(text) <= bytesMax,
  });
  return ajv;
}

const first = ajvWith(false);
const all = ajvWith(true);

/** A validator that stops at the first fault, and then looks for the others if the value is not too large for that. */
export function compile(schema: object): ValidateFunction {
  const validateFirst = first.compile(schema);
  const partsMax = Math.min(Math.max(sizeOf(schema).values, PARTS_ANYWAY), PARTS_MAX);
  const validate = (value: unknown): boolean => {
    if (validateFirst(value)) return true;
    if (hasParts(value, partsMax + 1)) validate.errors = validateFirst.errors;
    else {
      // Compiled when it is first needed: most schemas never are.
      const validateAll = all.compile(schema);
      validateAll(value);
      validate.errors = validateAll.errors;
    }
    return false;
  };
  validate.errors = validateFirst.errors;
  return validate as unknown as ValidateFunction;
}

/** Whether the value has at least so many parts, itself included. */
function hasParts(value: unknown, count: number): boolean {
  const left = [value];
  let counted = 0;
  while (left.length > 0) {
    const part = left.pop();
    if (++counted >= count) return true;
    if (typeof part !== 'object' || part === null) continue;
    for (const name in part) {
      left.push((part as Record<string, unknown>)[name]);
      if (counted + left.length >= count) return true;
    }
  }
  return false;
}

/** Query parameters are text: converts one to a number if the schema expects an integer and it is written as one. */
export function compileQuery(schema: { properties?: Record<string, { type?: unknown }> }): ValidateFunction {
  const numbers = Object.entries(schema.properties ?? {}).flatMap(([name, { type }]) =>
    type === 'integer' ? [name] : [],
  );
  const validate = compile(schema);
  if (numbers.length === 0) return validate;
  const converting = (query: Record<string, unknown>): boolean => {
    for (const name of numbers) {
      const text = query[name];
      if (typeof text === 'string' && WHOLE_NUMBER.test(text)) query[name] = Number(text);
    }
    const valid = validate(query) as boolean;
    converting.errors = validate.errors;
    return valid;
  };
  converting.errors = validate.errors;
  return converting as unknown as ValidateFunction;
}

const WHOLE_NUMBER = /^(0|-?[1-9][0-9]{0,14})$/;

const compiled = new WeakMap<object, ValidateFunction>();

/** What is wrong with a value; empty if it matches the schema. Fills in defaults. */
export function faults(schema: object, value: unknown): Fault[] {
  let validate = compiled.get(schema);
  if (validate === undefined) {
    validate = compile(schema);
    compiled.set(schema, validate);
  }
  return validate(value) ? [] : faultsOf(validate.errors ?? [], 'value');
}

/** Stops at the first fault: each of a file's millions of values may have one. */
const brief = new Ajv({ allErrors: false, strict: false });
const compiledBriefly = new WeakMap<object, ValidateFunction>();

/** The first thing that is wrong with a value from a file; undefined: nothing. For schemas without formats; fills in nothing. */
export function firstFault(schema: object, value: unknown): Fault | undefined {
  const validate = compiledBriefly.get(schema) ?? brief.compile(schema);
  compiledBriefly.set(schema, validate);
  return validate(value) ? undefined : faultsOf(validate.errors ?? [], 'value')[0];
}

export function faultsOf(errors: readonly ErrorObject[], part: string): Fault[] {
  const prefix = part === 'querystring' ? '?' : '/';
  return errors.slice(0, FAULTS_MAX).map(({ instancePath, keyword, params, message }) => {
    const extra =
      keyword === 'additionalProperties' ? (params as { additionalProperty: string }).additionalProperty : null;
    const missing = keyword === 'required' ? (params as { missingProperty: string }).missingProperty : null;
    const field = [
      ...instancePath.split('/').slice(1),
      ...(extra === null ? [] : [extra]),
      ...(missing === null ? [] : [missing]),
    ];
    const isWhole = instancePath === '' && part === 'body';
    const words = isWhole && keyword === 'type' ? NO_BODY : wordsFor(keyword, params, message);
    return { path: `${prefix}${field.join('/')}`, message: words };
  });
}

/** For a missing body, and for one that is a list, a text or null. */
const NO_BODY = 'the body must be a JSON object';

function wordsFor(keyword: string, params: Record<string, unknown>, message: string | undefined): string {
  if (keyword === 'additionalProperties') return 'is not a known field';
  if (keyword === 'required') return 'is missing';
  if (keyword === 'enum') return `must be one of ${(params['allowedValues'] as string[]).join(', ')}`;
  if (keyword === 'pattern' && params['pattern'] === NAME_PATTERN) {
    return 'must be well-formed Unicode without control characters and without blanks at its ends';
  }
  if (keyword === 'pattern' && params['pattern'] === TEXT_PATTERN) {
    return 'must be well-formed Unicode without control characters';
  }
  if (keyword === 'pattern' && params['pattern'] === CONTENT_PATTERN) {
    return 'must be well-formed Unicode, not only blanks, without control characters other than line feeds and tabs';
  }
  if (keyword === 'pattern' && params['pattern'] === HTTPS_PATTERN) return 'must be an https URL';
  if (keyword === 'pattern' && params['pattern'] === ID_PATTERN) return 'must be an id';
  if (keyword === 'pattern' && params['pattern'] === EMAIL_PATTERN) {
    return 'must be an e-mail address: one @, no blanks';
  }
  if (keyword === 'type' && Array.isArray(params['type'])) return `must be ${oneOf(params['type'] as string[])}`;
  if (keyword === 'format' && params['format'] === 'date-time') return 'must be a time like 2026-01-01T00:00:00Z';
  if (keyword === 'minItems') return `needs at least ${params['limit'] === 1 ? 'one' : params['limit']}`;
  if (keyword === 'minProperties') return 'needs at least one field';
  if (keyword === 'x-maxBytes') return `must have at most ${BOUNDS.textBytesMax} bytes`;
  return message ?? 'is not valid';
}

const TYPE_WORDS: Record<string, string> = { string: 'a text', number: 'a number', integer: 'a whole number' };

/** Null stands for a value that is left out, which nobody has to be told. */
function oneOf(types: readonly string[]): string {
  return types
    .filter((type) => type !== 'null')
    .map((type) => TYPE_WORDS[type] ?? `of type ${type}`)
    .join(' or ');
}
