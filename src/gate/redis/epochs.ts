/**
 * The highest epoch of each sale that this process has seen or was told of. A gate with a lower one is stale: the server may
 * have come back with an old copy.
 */
export class Epochs {
  readonly #known = new Map<string, number>();

  /** 0: none yet. */
  of(saleId: string): number {
    return this.#known.get(saleId) ?? 0;
  }

  saw(saleId: string, epoch: number): void {
    if (epoch > this.of(saleId)) this.#known.set(saleId, epoch);
  }
}
