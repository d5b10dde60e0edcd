/** How long to wait before the next try: `minMs` after the first failure (0), twice as long after each further one, up to `maxMs`. */
export function backOffMs(failures: number, minMs: number, maxMs: number): number {
  return Math.min(minMs * 2 ** failures, maxMs);
}
