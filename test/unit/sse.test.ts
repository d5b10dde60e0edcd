import { EventEmitter } from 'node:events';
import type { FastifyReply, FastifyRequest } from 'fastify';
import { beforeEach, describe, expect, it } from 'vitest';
import { Overload } from '../../src/http/overload.ts';
import { type EventStream, EventStreams, StreamPlaces } from '../../src/http/sse.ts';
import { type ManualRuntime, manualRuntime } from '../contract/manual.ts';

describe('places of event streams', () => {
  it('are bounded, and released once however often that is called', () => {
    const places = new StreamPlaces(2, 9);
    const [first, second] = [places.take(null), places.take(null)];
    expect(() => places.take(null)).toThrow('too many event streams are open');
    for (let n = 0; n < 3; n++) first[Symbol.dispose]();
    expect(places.taken).toBe(1);
    places.take(null);
    expect(() => places.take(null)).toThrow('too many');
    second[Symbol.dispose]();
    expect(places.taken).toBe(1);
  });

  it('are bounded for each address, but not without an address', () => {
    const places = new StreamPlaces(9, 2);
    const first = places.take('a');
    places.take('a');
    expect(() => places.take('a')).toThrow('this address has too many');
    places.take('b');
    for (let n = 0; n < 4; n++) places.take(null);
    first[Symbol.dispose]();
    first[Symbol.dispose]();
    places.take('a');
    expect(() => places.take('a')).toThrow('this address has too many');
    expect(places.taken).toBe(7);
  });
});

describe('places of buyers', () => {
  it('are bounded beside those of addresses; a refusal takes none of either', () => {
    const places = new StreamPlaces(99, 4, 2);
    const first = places.take('a', 'eve');
    places.take('b', 'eve');
    expect(() => places.take('c', 'eve')).toThrow('this buyer has too many open event streams');
    for (let n = 0; n < 3; n++) places.take('a', null);
    expect(() => places.take('a', 'ann')).toThrow('this address has too many');
    for (let n = 0; n < 2; n++) first[Symbol.dispose]();
    places.take('a', 'eve');
    for (let n = 0; n < 4; n++) places.take('c', null);
    expect(() => places.take('d', 'eve')).toThrow('this buyer has too many');
    expect(places.taken).toBe(9);
  });
});

describe('a stream gives its place back exactly once', () => {
  let runtime: ManualRuntime;
  let overload: Overload;
  let streams: EventStreams;
  let stops: number;
  beforeEach(() => {
    runtime = manualRuntime();
    overload = new Overload(runtime, { inFlightMax: 9, delayMsMax: 100 }, () => 0);
    streams = new EventStreams(runtime.timers, { max: 1, perAddressMax: 1 }, overload);
    stops = 0;
  });

  /** A client: the parts of Fastify's request and reply that the stream needs. */
  function client() {
    const socket = Object.assign(new EventEmitter(), { destroyed: false });
    const written: string[] = [];
    const raw = Object.assign(new EventEmitter(), {
      writableLength: 0,
      writeHead: (status: number) => void written.push(String(status)),
      write: (text: string) => void written.push(text),
      end: () => void written.push('end'),
      destroy: () => leave(),
    });
    const leave = (): void => {
      socket.destroyed = true;
      socket.emit('close');
      raw.emit('close');
    };
    const request = { raw: { socket }, ip: '127.0.0.1', headers: {} } as unknown as FastifyRequest;
    const reply = { raw, getHeaders: () => ({}), hijack: () => {} } as unknown as FastifyReply;
    overload.enter(request.raw);
    return { request, reply, written, leave, socket, raw };
  }

  function serve(one: ReturnType<typeof client>, watch?: (stream: EventStream) => Promise<() => void>) {
    const stop = (): void => void stops++;
    return streams.serve('public', one.request, one.reply, watch ?? (async () => stop));
  }

  /** Checks that the only place is free, and that exactly one client gets it. */
  async function oneIsFree(): Promise<void> {
    const next = client();
    await serve(next);
    await expect(serve(client())).rejects.toThrow('too many event streams');
    next.leave();
    expect([next.socket.listenerCount('close'), next.raw.listenerCount('close')]).toEqual([0, 0]);
  }

  it('when its client leaves', async () => {
    const one = client();
    await serve(one);
    expect(overload.inFlight).toBe(0);
    one.leave();
    one.leave();
    expect(stops).toBe(1);
    await oneIsFree();
  });

  it('when its client leaves while the sale is read: at once, and the subscription ends when there is one', async () => {
    const read = Promise.withResolvers<() => void>();
    const one = client();
    const served = serve(one, () => read.promise);
    await expect(serve(client())).rejects.toThrow('too many event streams');
    one.leave();
    await oneIsFree();
    expect(stops).toBe(1);
    read.resolve(() => void stops++);
    await served;
    expect([stops, one.written, overload.inFlight]).toEqual([2, [], 2]);
    await oneIsFree();
  });

  it('when its client had left before', async () => {
    const one = client();
    one.leave();
    await serve(one);
    expect([stops, one.written]).toEqual([1, []]);
    await oneIsFree();
  });

  it('when the sale cannot be read, or does not exist', async () => {
    const one = client();
    await expect(serve(one, () => Promise.reject(new Error('out')))).rejects.toThrow('out');
    one.leave();
    await oneIsFree();
  });

  it('when the server closes, whether it is open or waits', async () => {
    const open = client();
    await serve(open);
    streams.close();
    expect([stops, open.written.at(-1)]).toEqual([1, 'end']);
    const waiting = client();
    const read = Promise.withResolvers<() => void>();
    const served = serve(waiting, () => read.promise);
    streams.close();
    read.resolve(() => void stops++);
    await expect(served).rejects.toThrow('closing');
    expect(stops).toBe(2);
    await oneIsFree();
  });

  it('when everything is sent before it is open: the snapshot comes first', async () => {
    const one = client();
    await serve(one, async (stream) => {
      stream.send('order', '7', { status: 'cancelled' });
      stream.end();
      return () => void stops++;
    });
    expect(one.written).toEqual(['200', expect.stringContaining('id: 7\ndata: {"status":"cancelled"}'), 'end']);
    expect(stops).toBe(1);
    await oneIsFree();
  });

  it('when it does not read what is sent', async () => {
    const one = client();
    let tell = (): void => {};
    await serve(one, async (stream) => {
      tell = () => stream.send('stock', '1', {});
      return () => void stops++;
    });
    tell();
    expect(stops).toBe(0);
    one.raw.writableLength = 256 * 1024 + 1;
    tell();
    expect([stops, one.socket.destroyed]).toEqual([1, true]);
    await oneIsFree();
  });
});
