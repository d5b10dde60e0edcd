import { RetryableError } from './errors.ts';

/**
 * Stores a batch. If it cannot be stored as it is, it is halved until the members that cannot be stored are alone, so that they take no
 * others with them; `alone` gets each of these. One half after the other: the order is kept. A RetryableError says something about the
 * store and not about the batch: it is thrown at once.
 */
export async function halved<T>(
  batch: readonly T[],
  store: (part: readonly T[]) => Promise<void>,
  alone: (one: T, error: unknown) => Promise<void>,
): Promise<void> {
  if (batch.length === 0) return;
  try {
    await store(batch);
    return;
  } catch (error) {
    if (error instanceof RetryableError) throw error;
    if (batch.length === 1) return await alone(batch[0]!, error);
  }
  const middle = batch.length >> 1;
  await halved(batch.slice(0, middle), store, alone);
  await halved(batch.slice(middle), store, alone);
}
