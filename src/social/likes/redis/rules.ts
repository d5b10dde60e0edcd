/** Ages and bounds that the scripts keep. Ages are measured by Redis' clock. */
export interface LikeRules {
  /** How many events of a shard may be unsettled, and how many entries its stream may have. */
  readonly unsettledMax: number;
  /** How many subjects of a shard may be in Redis. */
  readonly subjectsMax: number;
  /** How many users the filters of a shard may hold, at 8 to 10 bytes each. */
  readonly filterUsersMax: number;
  /** How old the answer to a question of the script may be. */
  readonly askedMsMax: number;
  /** How long a settled pair stays at least: longer than such an answer may be old, with room for a clock that is set back. */
  readonly keepMs: number;
  /** After this time the next caller checks that the subject still exists; nobody waits for it. */
  readonly checkMs: number;
  /** After this time nothing is decided on the subject until somebody has. */
  readonly checkMsMax: number;
  /** How long a subject that nobody likes stays in Redis. */
  readonly idleMs: number;
}

export const LIKE_RULES: LikeRules = {
  unsettledMax: 200_000,
  subjectsMax: 100_000,
  filterUsersMax: 20_000_000,
  askedMsMax: 5000,
  keepMs: 10_000,
  checkMs: 1000,
  checkMsMax: 5000,
  idleMs: 10 * 60_000,
};
