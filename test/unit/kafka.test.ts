import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { nameFrom, parseAddress } from '../../src/pipe/kafka/address.ts';
import { assign } from '../../src/pipe/kafka/assign.ts';
import { reasonOf, refusalOf, says } from '../../src/pipe/kafka/client.ts';
import { Share } from '../../src/pipe/kafka/share.ts';

describe('an address of Kafka', () => {
  it.each([
    ['kafka://a', { brokers: [{ host: 'a', port: 9092 }], topic: null, tls: false, sasl: null }],
    [
      'kafka://a:1,[::1]:2/',
      {
        brokers: [
          { host: 'a', port: 1 },
          { host: '::1', port: 2 },
        ],
        topic: null,
      },
    ],
    ['kafka+ssl://a:1/my.topic', { tls: true, topic: 'my.topic' }],
    ['kafka://u:p%40%3A%2F@a/t', { sasl: { mechanism: 'PLAIN', username: 'u', password: 'p@:/' }, topic: 't' }],
    ['kafka://u:p@a?sasl=scram-sha-512', { sasl: { mechanism: 'SCRAM-SHA-512', username: 'u', password: 'p' } }],
    ['kafka://u:@a', { sasl: { mechanism: 'PLAIN', username: 'u', password: '' } }],
  ])('%s', (url, expected) => {
    expect(parseAddress(url)).toMatchObject(expected);
  });

  it.each([
    'kafka://',
    'kafka:a',
    'amqp://a',
    'kafka://a:0',
    'kafka://a:65536',
    'kafka://a:b',
    'kafka://a,,b',
    'kafka://u:s3cret@',
    'kafka://a/with space',
    'kafka://a/one/two',
    'kafka://a/..',
    'kafka://a/%zz',
    'kafka://a?sasl=plain',
    'kafka://u:s3cret@a?sasl=magic',
    'kafka://u:s3cret@a?tls=1',
  ])('%s is none', (url) => {
    expect(() => parseAddress(url)).toThrow(/^not an address of Kafka: [^\n]+$/);
    expect(() => parseAddress(url)).not.toThrow(/s3cret/);
  });

  it('makes a name of a prefix', () => {
    expect(nameFrom('shop:eu-1')).toBe('shop-eu-1');
  });
});

describe('the assignment of partitions', () => {
  const claims = fc
    .uniqueArray(fc.string({ minLength: 1, maxLength: 4 }), { minLength: 1, maxLength: 6 })
    .chain((ids) => fc.tuple(...ids.map((memberId) => fc.record({ memberId: fc.constant(memberId), owned: owned() }))));

  function owned() {
    return fc.uniqueArray(fc.nat(15), { maxLength: 12 });
  }

  it('gives each partition to one member, as evenly as possible', () => {
    fc.assert(
      fc.property(claims, fc.integer({ min: 1, max: 12 }), (members, partitions) => {
        const given = [...assign(members, partitions).values()];
        expect(given.flat().sort((one, other) => one - other)).toEqual(
          Array.from({ length: partitions }, (_, at) => at),
        );
        const sizes = given.map(({ length }) => length);
        expect(sizes).toHaveLength(members.length);
        expect(Math.max(...sizes) - Math.min(...sizes)).toBeLessThanOrEqual(1);
      }),
    );
  });

  it('is the same for every order of the members', () => {
    fc.assert(
      fc.property(claims, fc.integer({ min: 1, max: 12 }), (members, partitions) => {
        expect(assign(members.toReversed(), partitions)).toEqual(assign(members, partitions));
      }),
    );
  });

  it('changes no more than it must when one comes or goes', () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 6 }), fc.integer({ min: 1, max: 12 }), (count, partitions) => {
        const members = Array.from({ length: count }, (_, at) => ({ memberId: `m${at}`, owned: [] as number[] }));
        const before = assign(members, partitions);
        const now = members.map(({ memberId }) => ({ memberId, owned: before.get(memberId)! }));
        const more = assign([...now, { memberId: 'new', owned: [] }], partitions);
        for (const { memberId, owned } of now) for (const each of more.get(memberId)!) expect(owned).toContain(each);
        const fewer = count > 1 ? assign(now.slice(1), partitions) : before;
        for (const { memberId, owned } of now.slice(1)) {
          for (const each of owned) expect(fewer.get(memberId)).toContain(each);
        }
      }),
    );
  });
});

describe('what is done of a partition', () => {
  it('is known up to the first that is not, whatever the order', () => {
    fc.assert(
      fc.property(
        fc
          .uniqueArray(fc.nat(400), { minLength: 1, maxLength: 200 })
          .map((offsets) => offsets.sort((one, other) => one - other)),
        fc.infiniteStream(fc.nat()),
        (offsets, dice) => {
          const share = new Share(0, BigInt(offsets[0]!));
          const open = offsets.map((offset) => ({
            offset,
            done: share.handOver({ offset: BigInt(offset), body: '' }),
          }));
          while (open.length > 0) {
            const [{ done }] = open.splice(dice.next().value % open.length, 1) as [(typeof open)[0]];
            expect(done()).toBe(true);
            expect(done()).toBe(false);
            expect(share.inHand).toBe(open.length);
            expect(share.safe).toBe(open.length > 0 ? BigInt(open[0]!.offset) : BigInt(offsets.at(-1)! + 1));
          }
        },
      ),
    );
  });

  it('is nothing before anything came', () => {
    expect(new Share(3, 17n)).toMatchObject({ safe: 17n, committed: 17n, position: 17n, inHand: 0 });
  });
});

describe('an error of the library', () => {
  const told = (apiId: string, message = 'said the broker') =>
    Object.assign(new Error('x'), { apiId, serverErrorMessage: message });
  const around = (inner: Error) => new AggregateError([inner], 'many');

  it('is recognised by its cause', () => {
    const refused = new Error('connect ECONNREFUSED 127.0.0.1:1');
    expect(reasonOf(around(new Error('Connection failed.', { cause: refused })))).toBe(refused.message);
    expect(reasonOf(around(told('NOT_LEADER', 'two\nlines.')))).toBe('NOT_LEADER: two lines');
    expect(says(around(told('ILLEGAL_GENERATION')), 'UNKNOWN_MEMBER_ID', 'ILLEGAL_GENERATION')).toBe(true);
    expect(says(around(told('ILLEGAL_GENERATION')), 'UNKNOWN_MEMBER_ID')).toBe(false);
  });

  it('is a refusal, or an outage', () => {
    expect(refusalOf(around(told('SASL_AUTHENTICATION_FAILED')))).toContain('refuses the user or password');
    expect(refusalOf(around(told('TOPIC_AUTHORIZATION_FAILED')))).toContain('does not allow it');
    expect(refusalOf(Object.assign(new Error('x'), { code: 'DEPTH_ZERO_SELF_SIGNED_CERT' }))).toContain('not trusted');
    expect(refusalOf(Object.assign(new Error('x'), { code: 'ECONNREFUSED' }))).toBeNull();
    expect(refusalOf(around(told('NOT_COORDINATOR')))).toBeNull();
    // A connection that is lost during the login.
    const lost = Object.assign(new Error('no mechanism', { cause: new Error('closed') }), {
      code: 'PLT_KFK_AUTHENTICATION',
    });
    expect(refusalOf(around(lost))).toBeNull();
  });
});
