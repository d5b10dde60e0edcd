import type { Address, HolderState, LockState, Mode, WaiterState } from '../client/port.ts';

/** Reads the reply that every `…-inspect.lua` gives. */
export function inspectionOf(address: Address, reply: readonly unknown[]): LockState {
  const [nowMs, limit, waiting, holderParts, waiterParts] = reply as [number, number, number, string[], string[]];
  const holders: HolderState[] = [];
  for (let i = 0; i < holderParts.length; i += 7) {
    const [rid, mode, token, permits, since, remaining, info] = holderParts.slice(i, i + 7) as [
      string,
      Mode,
      ...string[],
    ];
    holders.push({
      rid,
      mode,
      token: Number(token),
      permits: Number(permits),
      sinceMs: Number(since),
      remainingMs: Math.max(0, Number(remaining)),
      info: info ?? '',
    });
  }
  const waiters: WaiterState[] = [];
  for (let i = 0; i < waiterParts.length; i += 4) {
    const [rid, mode, permits, ticket] = waiterParts.slice(i, i + 4) as [string, Mode, ...string[]];
    waiters.push({ rid, mode, permits: Number(permits), ticket: Number(ticket) });
  }
  return { kind: address.kind, name: address.name, holders, waiters, waiting, limit: limit < 0 ? null : limit, nowMs };
}
