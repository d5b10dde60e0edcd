import { afterAll, afterEach, beforeAll, expect, it } from 'vitest';
import { LikeWorld } from '../support/like-world.ts';
import { cleanUpServers } from '../support/servers/clean-up.ts';
import { describeWithAnyRedis } from '../support/servers/describe.ts';
import { redisUrl } from '../support/servers/redis.ts';

describeWithAnyRedis('likes that are counted in Redis', () => {
  let target: string;
  let world: LikeWorld;

  beforeAll(async () => {
    target = await redisUrl();
  });
  afterEach(() => world.end());
  afterAll(cleanUpServers);

  it('P8: smoke', async () => {
    world = new LikeWorld(target);
    world.ledger.add('post:1');
    const likes = world.process();
    await likes.start();
    console.log(await likes.set('post:1', 'anna', true));
    console.log(await likes.set('post:1', 'anna', true));
    console.log(await Promise.all(['b', 'c', 'd', 'anna'].map((u) => likes.set('post:1', u, u !== 'anna'))));
    console.log(await world.look('b', ['post:1', 'post:2']));
    console.log(JSON.stringify(await world.entries()));
    await world.settleAll();
    console.log(await world.look('b', ['post:1', 'post:2']));
    expect(world.ledger.liked('post:1')).toBe(3);
    console.log(await likes.set('post:9', 'b', true));
  });
});
