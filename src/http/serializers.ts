import fastJsonStringify from 'fast-json-stringify';

type Serialize = (answer: unknown) => string;

/**
 * Serializers of answers, built when the first answer of their kind is sent. A route declares a dozen problems that it may answer
 * with, most of which it never does: building all of them took half of a server's start.
 */
export class Serializers {
  readonly #built = new Map<string, Serialize>();

  /** For Fastify, which asks for one serializer per route and status. */
  of(schema: object): Serialize {
    let serialize: Serialize | null = null;
    return (answer) => {
      serialize ??= this.#build(schema);
      return serialize(answer);
    };
  }

  /** Schemas of the same content share one: most routes declare the same problems. */
  #build(schema: object): Serialize {
    const text = JSON.stringify(schema);
    const known = this.#built.get(text);
    if (known !== undefined) return known;
    const serialize = fastJsonStringify(schema as never) as Serialize;
    this.#built.set(text, serialize);
    return serialize;
  }
}
