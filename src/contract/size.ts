/** The largest value that a schema allows. */
export interface Size {
  /** As JSON, every character of a text written as escapes, without layout. Infinity: the schema has no bound. */
  readonly bytes: number;
  /** Objects, lists and what is in them, all counted. */
  readonly values: number;
}

interface Schema {
  readonly type?: unknown;
  readonly maxLength?: number;
  readonly pattern?: string;
  readonly enum?: readonly unknown[];
  readonly const?: unknown;
  readonly properties?: Readonly<Record<string, Schema>>;
  readonly additionalProperties?: unknown;
  readonly items?: Schema;
  readonly maxItems?: number;
  readonly anyOf?: readonly Schema[];
  readonly oneOf?: readonly Schema[];
}

/** A character outside of Unicode's first plane is two escapes: \ud83d\ude00. */
const ESCAPED_BYTES = 12;
const NUMBER_BYTES = 32;
const UNBOUNDED: Size = { bytes: Number.POSITIVE_INFINITY, values: Number.POSITIVE_INFINITY };

export function sizeOf(schema: object): Size {
  const { type, properties, additionalProperties, items, maxItems, anyOf, oneOf, ...one } = schema as Schema;
  const choices = anyOf ?? oneOf;
  if (choices !== undefined) return largest(choices.map(sizeOf));
  if (one.const !== undefined || one.enum !== undefined) {
    const words = one.enum ?? [one.const];
    return { bytes: Math.max(...words.map((word) => ESCAPED_BYTES * JSON.stringify(word).length)), values: 1 };
  }
  if (properties !== undefined) {
    if (additionalProperties !== false) return UNBOUNDED;
    const members = Object.entries(properties).map(([name, of]) => {
      const { bytes, values } = sizeOf(of);
      return { bytes: ESCAPED_BYTES * name.length + 4 + bytes, values };
    });
    return { bytes: 2 + sum(members, 'bytes'), values: 1 + sum(members, 'values') };
  }
  if (items !== undefined) {
    if (maxItems === undefined) return UNBOUNDED;
    const { bytes, values } = sizeOf(items);
    return { bytes: 2 + maxItems * (bytes + 1), values: 1 + maxItems * values };
  }
  if ([type].flat().includes('string')) {
    const lengthMax = one.maxLength ?? patternLengthMax(one.pattern);
    return lengthMax === null ? UNBOUNDED : { bytes: 2 + ESCAPED_BYTES * lengthMax, values: 1 };
  }
  return type === undefined || type === 'object' || type === 'array' ? UNBOUNDED : { bytes: NUMBER_BYTES, values: 1 };
}

function largest(sizes: readonly Size[]): Size {
  return {
    bytes: Math.max(...sizes.map(({ bytes }) => bytes)),
    values: Math.max(...sizes.map(({ values }) => values)),
  };
}

function sum(sizes: readonly Size[], of: keyof Size): number {
  return sizes.reduce((total, size) => total + size[of], 0);
}

/** Of a pattern that ends with how often its last part may occur, such as `^[a-z]{1,64}$`. */
function patternLengthMax(pattern: string | undefined): number | null {
  const [, max] = /^\^(?:\[[^\]]*\])\{\d+,(\d+)\}\$$/.exec(pattern ?? '') ?? [];
  return max === undefined ? null : Number(max);
}
