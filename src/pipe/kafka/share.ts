/** A message as it came. */
export interface Came {
  readonly offset: bigint;
  readonly body: string;
}

interface Slot {
  readonly offset: bigint;
  done: boolean;
}

/** One partition, for as long as it is ours without a break. */
export class Share {
  readonly partition: number;
  /** What the group has written down: a new owner begins there. */
  committed: bigint;
  /** The next offset to be fetched. */
  position: bigint;
  /** Fetched, and not yet handed over. */
  waiting: Came[] = [];
  /** In the order of their offsets; those before `#first` are done. */
  #slots: Slot[] = [];
  #first = 0;
  #inHand = 0;
  /** Beyond the last one that was handed over. */
  #next: bigint;

  constructor(partition: number, committed: bigint) {
    this.partition = partition;
    this.committed = committed;
    this.position = committed;
    this.#next = committed;
  }

  /** Handed over and not done. */
  get inHand(): number {
    return this.#inHand;
  }

  /** All that is before it is done. */
  get safe(): bigint {
    return this.#slots[this.#first]?.offset ?? this.#next;
  }

  /** Returns what says that it is done; true if that is news. */
  handOver({ offset }: Came): () => boolean {
    const slot: Slot = { offset, done: false };
    this.#slots.push(slot);
    this.#next = offset + 1n;
    this.#inHand++;
    return () => {
      if (slot.done) return false;
      slot.done = true;
      this.#inHand--;
      this.#forget();
      return true;
    };
  }

  #forget(): void {
    while (this.#slots[this.#first]?.done) this.#first++;
    if (this.#first < 64 || this.#first * 2 < this.#slots.length) return;
    this.#slots = this.#slots.slice(this.#first);
    this.#first = 0;
  }
}
