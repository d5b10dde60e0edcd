export function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/** Polls until the result is not false, null or undefined; fails after `withinMs` with `what` and what is `seen` then. */
export async function until<T>(
  what: string,
  withinMs: number,
  ask: () => Promise<T> | T,
  seen?: () => Promise<string> | string,
): Promise<Exclude<NonNullable<T>, false>> {
  const lastMs = performance.now() + withinMs;
  for (;;) {
    const answer = await ask();
    if (answer !== false && answer !== null && answer !== undefined) return answer as Exclude<NonNullable<T>, false>;
    if (performance.now() > lastMs) {
      throw new Error(`not within ${withinMs} ms: ${what}${seen ? `; seen: ${await seen()}` : ''}`);
    }
    await sleep(25);
  }
}
