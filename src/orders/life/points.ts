/**
 * Points between two steps of a flow, by name. In production nothing happens there; a test kills the process at each of them,
 * and checks what comes of it (test/faults/life-points.test.ts).
 */
export const POINTS = [
  'pay:locked',
  'pay:attempt-open',
  'pay:provider-answered',
  'pay:committed',
  'cancel:locked',
  'cancel:committed',
  'expire:found',
  'expire:committed',
  'refund:locked',
  'refund:started',
  'refund:provider-answered',
  'refund:committed',
  'late:found',
  'late:placed',
  'late:committed',
  'late:refund-started',
  'late:refunded',
  'settle:asked',
  'settle:committed',
  'webhook:locked',
  'webhook:committed',
  'release:committed',
  'release:in-gate',
] as const;

export type Point = (typeof POINTS)[number];

/** The same for a move to other seats, which needs a sale with seats (test/faults/seat-moves.test.ts). */
export const MOVE_POINTS = ['move:held', 'move:committed', 'move:in-gate'] as const;

export type MovePoint = (typeof MOVE_POINTS)[number];

export type Reached = (point: Point | MovePoint) => void;
