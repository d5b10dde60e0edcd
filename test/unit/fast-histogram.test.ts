import { Histogram, Registry } from 'prom-client';
import { describe, expect, it } from 'vitest';
import { FastHistogram } from '../../src/observe/fast-histogram.ts';

const BUCKETS = [0.001, 0.01, 0.1, 1];
const LABELS = ['method', 'status'];

describe('FastHistogram', () => {
  it('is printed by prom-client exactly as its own histogram is', async () => {
    const ours = new Registry();
    const fast = new FastHistogram('requests_seconds', 'Time of a request', LABELS, BUCKETS);
    ours.registerMetric(fast as never);
    const theirs = new Registry();
    const slow = new Histogram({
      name: 'requests_seconds',
      help: 'Time of a request',
      labelNames: LABELS,
      buckets: BUCKETS,
      registers: [theirs],
    });
    const observed: [string, string, number][] = [
      ['GET', '200', 0],
      ['GET', '200', 0.001],
      ['GET', '200', 0.0011],
      ['GET', '200', 1],
      ['GET', '200', 5],
      ['POST', '409', 0.05],
      ['weird "quoted"\nand \\ slashed', '500', 0.5],
    ];
    for (const [method, status, seconds] of observed) {
      fast.series(method, status).observe(seconds);
      slow.observe({ method, status }, seconds);
    }
    const lines = async (registry: Registry) => (await registry.metrics()).trim().split('\n').toSorted();
    expect(await lines(ours)).toEqual(await lines(theirs));
    expect(await ours.getMetricsAsJSON()).toHaveLength(1);
    expect(ours.contentType).toBe(theirs.contentType);
  });

  it('prints without any observation', async () => {
    const registry = new Registry();
    registry.registerMetric(new FastHistogram('empty', 'Nothing yet', LABELS, BUCKETS) as never);
    expect(await registry.metrics()).toBe('# HELP empty Nothing yet\n# TYPE empty histogram\n');
  });

  it('gives the same series for the same labels', () => {
    const histogram = new FastHistogram('h', 'H', LABELS, BUCKETS);
    expect(histogram.series('GET', '200')).toBe(histogram.series('GET', '200'));
    expect(histogram.series('GET', '200')).not.toBe(histogram.series('GET', '201'));
  });
});
