import { describe, expect, it } from 'vitest';
import { Fair } from '../../src/base/fair.ts';
import { settled } from '../contract/manual.ts';

/** Calls that are ended one by one; `began` has their names. */
class Calls {
  readonly began: string[] = [];
  readonly refused: string[] = [];
  readonly #fair: Fair;
  readonly #ends = new Map<string, () => void>();

  constructor(fair: Fair) {
    this.#fair = fair;
  }

  /** `name` is `network/address`, and a number behind it. */
  async ask(...names: string[]): Promise<void> {
    for (const name of names) {
      const [network, address] = name.split(/[/ ]/) as [string, string];
      const work = () => {
        this.began.push(name);
        return new Promise<void>((resolve) => void this.#ends.set(name, resolve));
      };
      this.#fair.run({ network, address: `${network}/${address}` }, work).catch(({ code, message }) => {
        expect([code, message]).toEqual(['overloaded', 'too many of these']);
        this.refused.push(name);
      });
      await settled();
    }
  }

  /** Ends those under way, one after the other, until nothing is. */
  async serveAll(): Promise<string[]> {
    const before = this.began.length;
    for (let at = 0; at < this.began.length; at++) {
      this.#ends.get(this.began[at]!)!();
      await settled();
    }
    return this.began.slice(before);
  }
}

describe('few at once, in turn', () => {
  it('networks take turns, and so do the addresses of a network; each in order of arrival', async () => {
    const calls = new Calls(new Fair(1, 10, 'of these'));
    await calls.ask('a/1 0', 'a/1 1', 'a/1 2', 'a/1 3', 'a/2 1', 'b/1 1', 'b/1 2', 'c/1 1');
    expect(calls.began).toEqual(['a/1 0']);
    expect(await calls.serveAll()).toEqual(['a/1 1', 'b/1 1', 'c/1 1', 'a/2 1', 'b/1 2', 'a/1 2', 'a/1 3']);
    expect(calls.refused).toEqual([]);
  });

  it('P10: whoever fills the queue gives way to others, down to as many places as they have', async () => {
    const calls = new Calls(new Fair(1, 4, 'of these'));
    await calls.ask('a/1 0', 'a/1 1', 'a/1 2', 'a/1 3', 'a/1 4');
    expect(calls.refused, 'alone it may have all').toEqual([]);
    await calls.ask('a/1 5', 'b/1 1', 'b/1 2', 'b/1 3');
    expect(calls.refused).toEqual(['a/1 5', 'a/1 4', 'a/1 3', 'b/1 3']);
    await calls.ask('c/1 1', 'c/1 2', 'd/1 1', 'e/1 1');
    expect(calls.refused.slice(4), 'one place each').toEqual(['a/1 2', 'c/1 2', 'b/1 2', 'e/1 1']);
    expect(await calls.serveAll()).toEqual(['a/1 1', 'b/1 1', 'c/1 1', 'd/1 1']);
    await calls.ask('e/1 2');
    expect(calls.began.at(-1)).toBe('e/1 2');
  });

  it('P10: a network with many addresses is one: it has a place for each, and gives way to another network', async () => {
    const calls = new Calls(new Fair(1, 4, 'of these'));
    await calls.ask('a/0 0', 'a/1 1', 'a/2 1', 'a/3 1', 'a/4 1', 'a/5 1', 'b/1 1', 'b/1 2');
    expect(calls.refused).toEqual(['a/5 1', 'a/1 1', 'a/2 1']);
    expect(await calls.serveAll()).toEqual(['a/3 1', 'b/1 1', 'a/4 1', 'b/1 2']);
  });

  it('P10: inside a network, whoever has most gives way to a neighbour', async () => {
    const calls = new Calls(new Fair(1, 3, 'of these'));
    await calls.ask('a/1 0', 'a/1 1', 'a/1 2', 'a/1 3', 'a/2 1', 'a/2 2');
    expect(calls.refused).toEqual(['a/1 3', 'a/2 2']);
    expect(await calls.serveAll()).toEqual(['a/1 1', 'a/2 1', 'a/1 2']);
  });

  it('a failure passes its place on', async () => {
    const fair = new Fair(1, 1, 'of these');
    const from = { network: 'a', address: 'a' };
    const first = fair.run(from, async () => {
      throw new Error('failed');
    });
    const second = fair.run(from, async () => 'second');
    await expect(first).rejects.toThrow('failed');
    expect([await second, await fair.run(from, async () => 'third')]).toEqual(['second', 'third']);
  });
});
