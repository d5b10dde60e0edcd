// npm run bench -- <scenario> [options]: one scenario per file in this folder.
const scenarios: Record<string, () => Promise<{ run(args: string[]): Promise<void> }>> = {
  orders: () => import('./orders.ts'),
  locks: () => import('./locks.ts'),
  gate: () => import('./gate.ts'),
  ledger: () => import('./ledger.ts'),
  pay: () => import('./pay.ts'),
  shop: () => import('./shop.ts'),
  pipe: () => import('./pipe.ts'),
  rebuild: () => import('./rebuild.ts'),
  likes: () => import('./likes.ts'),
  seats: () => import('./seats.ts'),
  compare: () => import('./compare.ts'),
};

const [name, ...args] = process.argv.slice(2);
const scenario = name === undefined ? undefined : scenarios[name];
if (scenario === undefined) {
  console.error(`usage: npm run bench -- <${Object.keys(scenarios).join(' | ')}>`);
  process.exit(2);
}
await (await scenario()).run(args);
