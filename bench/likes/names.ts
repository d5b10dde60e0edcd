/** Random, so that users do not come in the order of any index; each comes once. */
let last = 0;
export function userName(): string {
  return `user-${Math.random().toString(36).slice(2, 12)}-${process.pid}-${++last}`;
}

/** The document's users have numbers. */
export function userId(): number {
  return Math.floor(Math.random() * 2 ** 52);
}

/** The n-th of the users who have liked a post of a given size before. In the order of the index, so that they load fast. */
export function fanName(n: number): string {
  return `fan-${String(n).padStart(9, '0')}`;
}
