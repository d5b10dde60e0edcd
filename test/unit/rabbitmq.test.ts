import type { Channel } from 'rabbitmq-client';
import { describe, expect, it } from 'vitest';
import { TerminalError } from '../../src/base/errors.ts';
import { silentLog } from '../../src/base/logger.ts';
import type { Timers } from '../../src/base/timers.ts';
import { LIKES } from '../../src/pipe/likes.ts';
import { ORDERS } from '../../src/pipe/orders.ts';
import { parseRabbitUrl } from '../../src/pipe/rabbitmq/address.ts';
import { refusalOf, wordsOf } from '../../src/pipe/rabbitmq/answers.ts';
import { Intake } from '../../src/pipe/rabbitmq/intake.ts';
import { Topology } from '../../src/pipe/rabbitmq/topology.ts';
import { read } from '../support/docs/pages.ts';

describe('an address of RabbitMQ', () => {
  it('names hosts, user, virtual host and heartbeat', () => {
    expect(parseRabbitUrl('amqp://rabbit')).toEqual({
      tls: false,
      username: 'guest',
      password: 'guest',
      vhost: '/',
      hosts: [{ host: 'rabbit', port: 5672 }],
      heartbeat: 5,
    });
    expect(parseRabbitUrl('amqps://a%40b:p%2F%3A@one,two:77,[::1]:78/%2Fshop?heartbeat=20')).toEqual({
      tls: true,
      username: 'a@b',
      password: 'p/:',
      vhost: '/shop',
      hosts: [
        { host: 'one', port: 5671 },
        { host: 'two', port: 77 },
        { host: '::1', port: 78 },
      ],
      heartbeat: 20,
    });
    expect(parseRabbitUrl('amqp://one/').vhost).toBe('/');
  });

  it.each([
    'redis://one',
    'amqp://',
    'amqp://u:geheim@',
    'amqp://u:geheim@one:0',
    'amqp://u:geheim@one:70000',
    'amqp://u:geheim@one,,two',
    'amqp://u:geheim@one/a/b',
    'amqp://u:geheim%@one',
    'amqp://u:geheim@one?heartbeat=0',
    'amqp://u:geheim@one?heartbeat=soon',
    'amqp://u:geheim@one?prefix=x',
    'amqp://u:ge/heim@one',
    'amqp://u:ge@heim@one',
  ])('is not %s, and the password is not repeated', (url) => {
    expect(() => parseRabbitUrl(url)).toThrow(TerminalError);
    expect(() => parseRabbitUrl(url)).not.toThrow(/geheim|heim@/);
  });
});

describe('what RabbitMQ says', () => {
  const told = (code: string, message: string): Error => Object.assign(new Error(message), { code });

  it('is put into one line without the names of methods', () => {
    const error = told(
      'PRECONDITION_FAILED',
      "QueueDeclare: PRECONDITION_FAILED - inequivalent arg 'x'\n  for queue 'q'",
    );
    expect(wordsOf(error)).toBe("inequivalent arg 'x' for queue 'q'");
    expect(wordsOf(told('CONN_CLOSE', 'socket closed; BasicAck; BasicAck'))).toBe('socket closed');
    expect(wordsOf(told('ECONNREFUSED', ''))).toBe('ECONNREFUSED');
    expect(wordsOf(told('ECONNREFUSED', 'connect ECONNREFUSED ::1:5672'))).toBe('connect ECONNREFUSED ::1:5672');
  });

  it('is final, or passes', () => {
    expect(refusalOf(told('ACCESS_REFUSED', 'ConnectionStartOK: ACCESS_REFUSED - Login was refused'))?.code).toBe(
      'bad_config',
    );
    expect(refusalOf(told('NOT_ALLOWED', 'ConnectionOpen: NOT_ALLOWED - vhost x not found'))).not.toBeNull();
    const full =
      "ConnectionOpen: NOT_ALLOWED - access to vhost '/' refused for user 'u': connection limit (1) is reached";
    expect(refusalOf(told('NOT_ALLOWED', full))).toBeNull();
    expect(refusalOf(told('INTERNAL_ERROR', "ConnectionOpen: INTERNAL_ERROR - vhost '/' is down"))).toBeNull();
    expect(refusalOf(told('ECONNREFUSED', 'connect ECONNREFUSED'))).toBeNull();
  });
});

describe('what a channel has brought', () => {
  function world() {
    const sent: string[] = [];
    const turns: (() => void)[] = [];
    const channel = {
      active: true,
      basicAck: ({ deliveryTag, multiple = false }: { deliveryTag: number; multiple?: boolean }) =>
        sent.push(`${multiple ? 'up to ' : ''}${deliveryTag}`),
      basicNack: ({ deliveryTag, requeue }: { deliveryTag: number; requeue: boolean }) =>
        sent.push(`${requeue ? 'back' : 'dead'} ${deliveryTag}`),
    };
    const timers = { nextTurn: (run: () => void) => turns.push(run) } as unknown as Timers;
    const intake = new Intake(channel as unknown as Channel, timers);
    const turn = (): string[] => {
      for (const run of turns.splice(0)) run();
      return sent.splice(0);
    };
    return { channel, intake, turn };
  }

  it('is told in one acknowledgement per turn, as far as nothing is missing', () => {
    const { intake, turn } = world();
    const done = [1, 2, 3, 4, 5, 6].map((tag) => intake.take(tag));
    for (const at of [1, 0, 2, 4]) done[at]!();
    expect(turn()).toEqual(['5', 'up to 3']);
    done[3]!();
    done[3]!();
    done[0]!();
    expect(turn()).toEqual(['up to 4']);
    done[5]!();
    expect(turn()).toEqual(['up to 6']);
    done[5]!();
    expect(turn()).toEqual([]);
  });

  it('counts what was refused as gone', () => {
    const { intake, turn } = world();
    const first = intake.take(1);
    intake.refuse(2);
    const third = intake.take(3);
    third();
    first();
    expect(turn()).toEqual(['dead 2', 'up to 3']);
  });

  it('is forgotten with the channel', () => {
    const { channel, intake, turn } = world();
    const done = [1, 2, 3].map((tag) => intake.take(tag));
    done[0]!();
    channel.active = false;
    done[1]!();
    intake.refuse(4);
    expect(turn()).toEqual([]);
    channel.active = true;
    done[0]!();
    done[2]!();
    expect(turn()).toEqual([]);
  });
});

it('the rights that the guide grants cover every name of orders and of likes, and of no other prefix', () => {
  const names = new RegExp(/^names='(.*)'$/m.exec(read('docs/guides/pipes.md'))![1]!);
  for (const { kind } of [ORDERS, LIKES]) {
    const { exchange, dead, queues } = new Topology('doorbuster', kind, 8, silentLog());
    for (const name of [exchange, dead, ...queues]) expect(name).toMatch(names);
    expect(new Topology('doorbuster2', kind, 8, silentLog()).exchange).not.toMatch(names);
  }
});
