import type { AdmitRequest, Verdict } from '../../src/gate/port.ts';

/**
 * The gate as a child would write it: every live unit is an entry of a list, everything else is counted from it. It is
 * slow and has no idea in common with src/gate: no holds, no running sums, no maps. Which slots a unit gets is not
 * predicted but judged (`slotFaults`), since the promise is that they fit and not which they are.
 */
export interface Unit {
  orderId: string;
  item: string;
  buyer: string;
  slot: number;
  queued: boolean;
}

interface Bound {
  buyer: string;
  key: string;
  orderId: string;
  fingerprint: string;
  atMs: number;
}

export interface ModelItem {
  id: string;
  code: string;
  total: number;
  blocked: number;
  rev: number;
}

export class GateModel {
  units: Unit[] = [];
  house: { item: string; holdId: string }[] = [];
  bound: Bound[] = [];
  /** Orders that the ledger has stored: a rebuild brings their keys back. */
  stored: string[] = [];
  items: ModelItem[];
  opensAtMs: number;
  closesAtMs: number;
  perBuyer: number;
  paused = false;
  closed = false;
  version = 1;
  epoch = 1;

  constructor(items: ModelItem[], perBuyer: number, opensAtMs: number, closesAtMs: number) {
    this.items = items;
    this.perBuyer = perBuyer;
    this.opensAtMs = opensAtMs;
    this.closesAtMs = closesAtMs;
  }

  free(code: string): number {
    const { total, blocked } = this.items.find((item) => item.code === code)!;
    return total - blocked - this.live(code).length - this.house.filter(({ item }) => item === code).length;
  }

  live(code: string): Unit[] {
    return this.units.filter(({ item }) => item === code);
  }

  ofBuyer(buyer: string): Unit[] {
    return this.units.filter((unit) => unit.buyer === buyer);
  }

  ofOrder(orderId: string): Unit[] {
    return this.units.filter((unit) => unit.orderId === orderId);
  }

  /** What the gate must say; for an admission without its message. */
  verdict(request: AdmitRequest, nowMs: number): { outcome: Verdict['outcome'] } & Record<string, unknown> {
    const { orderId, itemCode, buyer, quantity, key, fingerprint } = request;
    const window = { opensAtMs: this.opensAtMs, closesAtMs: this.closesAtMs };
    if (!this.items.some(({ code }) => code === itemCode)) return { outcome: 'not_found' };
    if (this.ofOrder(orderId).length > 0) return { outcome: 'admitted' };
    for (const bound of this.bound) {
      if (bound.buyer !== buyer || bound.key !== key) continue;
      if (bound.fingerprint !== fingerprint) return { outcome: 'idempotency_key_reused' };
      return { outcome: 'replayed', orderId: bound.orderId };
    }
    if (this.closed) return { outcome: 'sale_closed', ...window };
    if (nowMs < this.opensAtMs) return { outcome: 'sale_not_open', ...window };
    if (nowMs >= this.closesAtMs) return { outcome: 'sale_closed', ...window };
    if (this.paused) return { outcome: 'sale_paused', ...window };
    const mine = this.ofBuyer(buyer);
    if (mine.length + quantity > this.perBuyer) {
      const orderIds = [...new Set(mine.map((unit) => unit.orderId))].sort();
      return { outcome: 'limit_reached', orderIds, perBuyer: this.perBuyer };
    }
    if (quantity > this.free(itemCode)) return { outcome: 'sold_out' };
    return { outcome: 'admitted' };
  }

  /** What is wrong with the slots of a new order (P2), or null. */
  slotFaults(buyer: string, quantity: number, slots: number[]): string | null {
    if (slots.length !== quantity) return `${quantity} units and ${slots.length} slots`;
    for (const [at, slot] of slots.entries()) {
      if (!(slot >= 1 && slot <= this.perBuyer && Number.isInteger(slot))) return `slot ${slot} of ${this.perBuyer}`;
      if (slots.indexOf(slot) !== at) return `slot ${slot} twice in one order`;
      if (this.ofBuyer(buyer).some((unit) => unit.slot === slot)) return `slot ${slot} is taken`;
    }
    return null;
  }

  admit({ orderId, itemCode, buyer, key, fingerprint }: AdmitRequest, slots: number[], nowMs: number): void {
    for (const slot of slots) this.units.push({ orderId, item: itemCode, buyer, slot, queued: true });
    if (key !== null) this.bound.push({ buyer, key, orderId, fingerprint, atMs: nowMs });
  }

  settle(orderId: string): void {
    for (const unit of this.ofOrder(orderId)) unit.queued = false;
    if (this.ofOrder(orderId).length > 0) this.stored.push(orderId);
  }

  release(orderId: string): void {
    if (this.ofOrder(orderId).length > 0) this.stored.push(orderId);
    this.units = this.units.filter((unit) => unit.orderId !== orderId);
  }

  withdraw(orderId: string): void {
    if (this.ofOrder(orderId).length === 0) return;
    this.units = this.units.filter((unit) => unit.orderId !== orderId);
    this.bound = this.bound.filter((bound) => bound.orderId !== orderId);
  }

  pruneKeys(beforeMs: number): void {
    const undecided = (orderId: string): boolean => this.ofOrder(orderId).some(({ queued }) => queued);
    this.bound = this.bound.filter(({ atMs, orderId }) => atMs >= beforeMs || undecided(orderId));
  }

  /** From the ledger alone: what it has not stored is gone. */
  rebuild(): void {
    this.epoch++;
    this.house = [];
    this.units = this.units.filter(({ queued }) => !queued);
    this.bound = this.bound.filter(({ orderId }) => this.stored.includes(orderId));
  }
}
