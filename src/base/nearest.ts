/** The known name that is at most two edits away from `given`, ignoring case and dashes, or null: for "did you mean". */
export function nearest(given: string, known: readonly string[]): string | null {
  const plain = (name: string): string => name.toLowerCase().replaceAll(/[-_.]/g, '');
  const far = known.map((name) => ({ name, by: distance(plain(given), plain(name)) }));
  const [best] = far.sort((a, b) => a.by - b.by);
  return best !== undefined && best.by <= Math.min(2, Math.floor(best.name.length / 2)) ? best.name : null;
}

/** Levenshtein distance; 3 stands for anything above 2. */
function distance(a: string, b: string): number {
  if (Math.abs(a.length - b.length) > 2) return 3;
  let row = Array.from({ length: b.length + 1 }, (_, at) => at);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) {
      const changed = row[j - 1]! + (a[i - 1] === b[j - 1] ? 0 : 1);
      next.push(Math.min(changed, row[j]! + 1, next[j - 1]! + 1));
    }
    row = next;
  }
  return row[b.length]!;
}
