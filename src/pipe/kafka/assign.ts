/** A member of the group, and the partitions that it had until now. */
export interface Claim {
  readonly memberId: string;
  readonly owned: readonly number[];
}

/**
 * Assigns partitions as evenly as possible; within that, a member keeps the ones it had. A partition that stays need not be read
 * again from its last commit.
 */
export function assign(claims: readonly Claim[], partitions: number): Map<string, number[]> {
  const members = claims.toSorted((one, other) => (one.memberId < other.memberId ? -1 : 1));
  const given = new Map<string, number[]>(members.map(({ memberId }) => [memberId, []]));
  const free = new Set(Array.from({ length: partitions }, (_, partition) => partition));
  const fair = Math.floor(partitions / members.length);
  let extra = partitions % members.length;
  for (const { memberId, owned } of members) {
    const kept = given.get(memberId)!;
    for (const partition of owned) {
      const fits = kept.length < fair || (kept.length === fair && extra > 0);
      if (!fits || !free.delete(partition)) continue;
      kept.push(partition);
      if (kept.length > fair) extra--;
    }
  }
  for (const partition of free) {
    const least = members.reduce((one, other) =>
      given.get(other.memberId)!.length < given.get(one.memberId)!.length ? other : one,
    );
    given.get(least.memberId)!.push(partition);
  }
  return given;
}
