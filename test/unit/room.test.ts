import { beforeEach, describe, expect, it } from 'vitest';
import { ManualClock } from '../../src/base/clock.ts';
import { RoomForWriting, type Space, spaceOf } from '../../src/social/room.ts';

const MIB = 2 ** 20;

describe('room for what people write', () => {
  let clock: ManualClock;
  let space: Space | Error;
  let looks: number;
  let room: RoomForWriting;

  beforeEach(() => {
    clock = new ManualClock(0);
    looks = 0;
    room = new RoomForWriting(clock, async () => {
      looks++;
      if (space instanceof Error) throw space;
      return space;
    });
  });

  async function isThere(now: Space | Error): Promise<boolean> {
    space = now;
    clock.advance(1000);
    return await room.mustBeEnough().then(
      () => true,
      ({ code }) => code !== 'unavailable',
    );
  }

  it('P10: 256 MiB of a large disk are left to orders, and a twentieth of a small one', async () => {
    const large = 1000 * 1024 * MIB;
    expect([
      await isThere({ free: 256 * MIB, total: large }),
      await isThere({ free: 256 * MIB - 1, total: large }),
    ]).toEqual([true, false]);
    expect([
      await isThere({ free: 2 * MIB, total: 40 * MIB }),
      await isThere({ free: 2 * MIB - 1, total: 40 * MIB }),
    ]).toEqual([true, false]);
  });

  it('is looked at once a second, for all who write; a disk that does not tell is no reason to refuse', async () => {
    expect(await isThere({ free: 0, total: 100 })).toBe(false);
    clock.advance(999);
    await Promise.allSettled([room.mustBeEnough(), room.mustBeEnough()]);
    expect(looks).toBe(1);
    clock.advance(1);
    space = { free: 100, total: 100 };
    await Promise.all([room.mustBeEnough(), room.mustBeEnough()]);
    expect(looks).toBe(2);
    expect(await isThere(new Error('no such call'))).toBe(true);
  });

  it('is that of the file system', async () => {
    const { free, total } = await spaceOf(import.meta.dirname);
    expect(total).toBeGreaterThan(MIB);
    expect(free).toBeLessThanOrEqual(total);
  });
});
