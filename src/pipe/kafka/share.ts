/** A message as it came. */
export interface Came {
  readonly offset: bigint;
  readonly body: string;
}

interface Slot {
  readonly offset: bigint;
  done: boolean;
}

/** One partition, while it is ours without interruption. */
export class Share {
  readonly partition: number;
  /** The committed offset: a new owner begins there. */
  committed: bigint;
  /** The next offset to be fetched. */
  position: bigint;
  /** Fetched, and not delivered yet. */
  waiting: Came[] = [];
  /** In the order of their offsets; those before `#first` are done. */
  #slots: Slot[] = [];
  #first = 0;
  #inHand = 0;
  /** The offset after the last one that was delivered. */
  #next: bigint;

  constructor(partition: number, committed: bigint) {
    this.partition = partition;
    this.committed = committed;
    this.position = committed;
    this.#next = committed;
  }

  /** Delivered and not done. */
  get inHand(): number {
    return this.#inHand;
  }

  /** Everything before this offset is done. */
  get safe(): bigint {
    return this.#slots[this.#first]?.offset ?? this.#next;
  }

  /** Returns a function that marks it done; that one returns false if it was marked before. */
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
