import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join, posix, relative, sep } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { parseAst } from 'vitest/node';

/**
 * The tree's own rules (docs/architecture.md, Folders), checked on the syntax tree of every source file:
 *   the world     time, timers and randomness come from base/, so that a simulator can control them;
 *   the rooms     which folder may import which, types included unless the rule says otherwise.
 */
const SRC = fileURLToPath(new URL('../../src/', import.meta.url));

interface Node {
  type: string;
  [field: string]: unknown;
}

interface Import {
  /** As written. */
  from: string;
  typeOnly: boolean;
  names: string[];
}

function* walk(node: unknown, parent: Node | null = null, field = ''): Generator<[Node, Node | null, string]> {
  if (Array.isArray(node)) for (const child of node) yield* walk(child, parent, field);
  if (node === null || typeof node !== 'object' || typeof (node as Node).type !== 'string') return;
  yield [node as Node, parent, field];
  for (const [name, child] of Object.entries(node)) {
    if (child !== null && typeof child === 'object') yield* walk(child, node as Node, name);
  }
}

function parse(source: string): Node {
  return parseAst(source, { lang: 'ts' }) as unknown as Node;
}

function importsOf(program: Node): Import[] {
  const imports: Import[] = [];
  for (const [node] of walk(program)) {
    const from = (node.source as { value?: unknown } | null | undefined)?.value;
    if (typeof from !== 'string') continue;
    const specifiers = (node.specifiers ?? []) as Record<string, unknown>[];
    const kind = node.importKind ?? node.exportKind;
    const values = specifiers.filter((one) => (one.importKind ?? one.exportKind) !== 'type');
    const typeOnly = kind === 'type' || (specifiers.length > 0 && values.length === 0);
    const names = specifiers.map((one) => ((one.imported ?? one.local) as { name: string }).name);
    imports.push({ from, typeOnly, names });
  }
  return imports;
}

// The world

const GLOBALS = new Set(['performance', 'setTimeout', 'setInterval', 'setImmediate', 'crypto']);
const MEMBERS: Record<string, string[]> = {
  Date: ['now'],
  Math: ['random'],
  process: ['hrtime', 'uptime', 'cpuUsage'],
  AbortSignal: ['timeout'],
  globalThis: [...GLOBALS],
};
const MODULES: Record<string, (name: string) => boolean> = {
  'node:timers': () => true,
  'node:timers/promises': () => true,
  // The delay of the real event loop is the only measurement that cannot be passed in.
  'node:perf_hooks': (name) => name !== 'monitorEventLoopDelay',
  'node:crypto': (name) => /^(random|webcrypto$|getRandomValues$)/.test(name),
};

/** Where a file uses time, timers or randomness directly. */
function worldFaults(program: Node): string[] {
  const faults: string[] = [];
  for (const { from, names, typeOnly } of importsOf(program)) {
    const forbidden = MODULES[from.startsWith('node:') ? from : `node:${from}`];
    if (!typeOnly && forbidden) for (const name of names) if (forbidden(name)) faults.push(`${name} of ${from}`);
  }
  for (const [node, parent, field] of walk(program)) {
    if (node.type === 'NewExpression' || node.type === 'CallExpression') {
      const callee = node.callee as Node;
      const bare = (node.arguments as unknown[]).length === 0 || node.type === 'CallExpression';
      if (callee.name === 'Date' && bare) faults.push(node.type === 'NewExpression' ? 'new Date()' : 'Date()');
    }
    if (node.type === 'MemberExpression') {
      const object = (node.object as Node).name as string | undefined;
      const property = node.property as Node;
      const name = (node.computed ? property.value : property.name) as string;
      if (object !== undefined && Object.hasOwn(MEMBERS, object) && MEMBERS[object]!.includes(name)) {
        faults.push(`${object}.${name}`);
      }
    }
    // A name that is used as a value; not a property, a key, a parameter or a type of that name.
    const read =
      node.type === 'Identifier' &&
      GLOBALS.has(node.name as string) &&
      !(parent?.type === 'MemberExpression' && field === 'property' && !parent.computed) &&
      !(parent?.type === 'Property' && field === 'key') &&
      !/^(ImportSpecifier|PropertyDefinition|MethodDefinition|TS\w+)$/.test(parent?.type ?? '');
    if (read) faults.push(node.name as string);
  }
  return faults;
}

// The rooms

const STAGES = ['gate', 'pipe', 'ledger', 'orders', 'sales', 'social', 'locks', 'payments', 'webhooks', 'reconcile'];
/** Files that put a whole deployment together. */
const ROOTS = [
  'engine/shop.ts',
  'engine/embedded.ts',
  'engine/distributed.ts',
  'engine/open.ts',
  'library/doorbuster.ts',
];
const PORT = /^[^/]+\/port\.ts$/;

const roomOf = (file: string): string => (file.includes('/') ? file.split('/')[0]! : file);

/** Why `file` may not import `target` (both as paths inside src), or null. */
function roomFault(file: string, target: string, typeOnly: boolean): string | null {
  const room = roomOf(file);
  const other = roomOf(target);
  if (ROOTS.includes(target) && room !== other) {
    const mayCompose = ['cli', 'library', 'engine', 'index.ts', 'fastify.ts'].includes(room);
    if (!mayCompose && !(room === 'http' && typeOnly))
      return 'only cli, the library and (types) http know a whole shop';
  }
  if (room === other) return null;
  switch (room) {
    case 'base':
      return 'base imports nothing of ours';
    case 'model':
      return 'model imports only model';
    case 'contract':
    case 'observe':
      return ['base', 'model'].includes(other) ? null : `${room} stands on base and model`;
    case 'views':
      if (STAGES.includes(other)) return PORT.test(target) ? null : 'views read stages by their ports';
      return ['base', 'model'].includes(other) ? null : 'views stand on base, model and ports';
    case 'crowd':
      return ['base', 'model', 'contract'].includes(other) ? null : 'the crowd knows the shop by HTTP only';
    case 'engine':
      return ['base', 'model', 'observe', 'views', ...STAGES].includes(other)
        ? null
        : 'engine composes stages and views and nothing above';
    case 'http':
      if (STAGES.includes(other)) return typeOnly || PORT.test(target) ? null : 'http goes through the engine';
      return ['base', 'model', 'contract', 'observe', 'views', 'engine'].includes(other)
        ? null
        : 'http stands on the engine';
    case 'library':
      if (STAGES.includes(other)) return typeOnly || PORT.test(target) ? null : 'the library goes through the engine';
      return ['cli', 'crowd'].includes(other) ? 'the library does not know the command line' : null;
    default:
      if (!STAGES.includes(room)) return null;
      if (['base', 'model'].includes(other)) return null;
      return STAGES.includes(other) && PORT.test(target) ? null : 'a stage knows base, model and ports of other stages';
  }
}

function roomFaults(file: string, program: Node): string[] {
  const faults: string[] = [];
  for (const { from, typeOnly } of importsOf(program)) {
    if (!from.startsWith('.')) {
      if (roomOf(file) === 'model') faults.push(`${from}: model is pure`);
      continue;
    }
    const fault = roomFault(file, posix.join(posix.dirname(file), from), typeOnly);
    if (fault !== null) faults.push(`${from}: ${fault}`);
  }
  return faults;
}

function faultsOf(file: string, source: string): string[] {
  const program = parse(source);
  return [...(roomOf(file) === 'base' ? [] : worldFaults(program)), ...roomFaults(file, program)];
}

const files = readdirSync(SRC, { recursive: true, encoding: 'utf8' })
  .map((file) => file.split(sep).join('/'))
  // Pages run in a browser and have its clock.
  .filter((file) => file.endsWith('.ts') && !file.startsWith('http/pages/'))
  .toSorted();

describe('the tree', () => {
  it('is found', () => {
    expect(files.length).toBeGreaterThan(40);
    for (const root of ROOTS) expect(files).toContain(root);
  });

  it.each(files)('%s keeps the rules', (file) => {
    expect(faultsOf(file, readFileSync(join(SRC, file), 'utf8'))).toEqual([]);
  });

  it('has no import cycle between rooms', () => {
    const needs = new Map<string, Set<string>>();
    for (const file of files) {
      for (const { from, typeOnly } of importsOf(parse(readFileSync(join(SRC, file), 'utf8')))) {
        if (typeOnly || !from.startsWith('.')) continue;
        const target = roomOf(
          relative(SRC, join(SRC, dirname(file), from))
            .split(sep)
            .join('/'),
        );
        if (target === roomOf(file)) continue;
        needs.set(roomOf(file), (needs.get(roomOf(file)) ?? new Set()).add(target));
      }
    }
    for (const room of needs.keys()) expect(circleFrom(room, needs, [])).toBeNull();
  });

  it.each(STAGES)('%s: has no import cycle between folders, types included', (stage) => {
    const needs = new Map<string, Set<string>>();
    for (const file of files.filter((one) => roomOf(one) === stage)) {
      const folder = posix.dirname(file);
      for (const { from } of importsOf(parse(readFileSync(join(SRC, file), 'utf8')))) {
        const target = from.startsWith('.') ? posix.dirname(posix.join(folder, from)) : '';
        if (roomOf(`${target}/`) !== stage || target === folder) continue;
        needs.set(folder, (needs.get(folder) ?? new Set()).add(target));
      }
    }
    for (const folder of needs.keys()) expect(circleFrom(folder, needs, [])).toBeNull();
  });
});

/** An import cycle from a room back to itself, or null. */
function circleFrom(room: string, needs: ReadonlyMap<string, ReadonlySet<string>>, seen: string[]): string[] | null {
  if (seen.includes(room)) return [...seen, room];
  for (const next of needs.get(room) ?? []) {
    const circle = circleFrom(next, needs, [...seen, room]);
    if (circle) return circle;
  }
  return null;
}

describe('the checker finds', () => {
  it.each([
    ['gate/memory.ts', 'const now = Date.now();'],
    ['gate/memory.ts', 'const read = Date.now;'],
    ['gate/memory.ts', "const now = Date['now']();"],
    ['gate/memory.ts', 'const now = new Date();'],
    ['gate/memory.ts', 'const now = Date();'],
    ['http/sse.ts', 'const at = performance.now();'],
    ['http/sse.ts', "import { performance } from 'node:perf_hooks';"],
    ['cli/serve.ts', 'setTimeout(() => {}, 1);'],
    ['cli/serve.ts', 'await new Promise((resolve) => setTimeout(resolve, 1));'],
    ['cli/serve.ts', 'const later = { run: setImmediate };'],
    ['cli/serve.ts', 'globalThis.setInterval(() => {}, 1);'],
    ['cli/serve.ts', "import { setTimeout as sleep } from 'node:timers/promises';"],
    ['cli/serve.ts', "import { setTimeout } from 'timers';"],
    ['orders/place.ts', 'const lucky = Math.random() < 0.5;'],
    ['orders/place.ts', "import { randomUUID } from 'node:crypto';"],
    ['orders/place.ts', "import { createHash, randomBytes } from 'crypto';"],
    ['orders/place.ts', 'const id = crypto.randomUUID();'],
    ['orders/place.ts', 'const at = process.hrtime.bigint();'],
    ['crowd/client.ts', 'const signal = AbortSignal.timeout(5);'],
    ['base/ids.ts', "import { takeSlots } from '../model/limit.ts';"],
    ['base/ids.ts', "import type { OrderMessage } from '../model/order.ts';"],
    ['model/sale.ts', "import { invariant } from '../base/errors.ts';"],
    ['model/sale.ts', "import { createHash } from 'node:crypto';"],
    ['gate/memory.ts', "import { MemoryPipe } from '../pipe/memory.ts';"],
    ['gate/memory.ts', "import type { MemoryPipe } from '../pipe/memory.ts';"],
    ['gate/memory.ts', "export { Writer } from '../ledger/writer.ts';"],
    ['orders/place.ts', "const sqlite = await import('../ledger/drivers/sqlite/ledger.ts');"],
    ['orders/place.ts', "import type { Shop } from '../engine/shop.ts';"],
    ['ledger/drivers/sqlite/orders.ts', "import { PendingDecisions } from '../../../orders/pending-decisions.ts';"],
    ['ledger/writer.ts', "import { Metrics } from '../observe/metrics.ts';"],
    ['observe/metrics.ts', "import type { Ledger } from '../ledger/port.ts';"],
    ['http/context.ts', "import { EmbeddedShop } from '../engine/embedded.ts';"],
    ['http/routes/orders.ts', "import { type PlaceResult, PlaceOrder } from '../../orders/place.ts';"],
    ['http/routes/orders.ts', "import { createDoorbuster } from '../../library/doorbuster.ts';"],
    ['engine/shop.ts', "import { createServer } from '../http/server.ts';"],
    ['views/board.ts', "import { MemoryGate } from '../gate/memory.ts';"],
    ['views/board.ts', "import { Metrics } from '../observe/metrics.ts';"],
    ['gate/rebuild.ts', "import type { Locks } from '../locks/locks.ts';"],
    ['orders/decisions.ts', "import { presentOrder } from '../views/present.ts';"],
    ['crowd/crowd.ts', "import { EmbeddedShop } from '../engine/embedded.ts';"],
  ])('in %s: %s', (file, source) => {
    expect(faultsOf(file, source)).not.toEqual([]);
  });

  it.each([
    ['base/clock.ts', 'const now = () => Date.now() + performance.now() + new Date().getTime();'],
    ['gate/memory.ts', 'const at = new Date(0).toISOString(); const then = Date.parse("2026-01-01");'],
    ['gate/memory.ts', 'queueMicrotask(() => {});'],
    ['gate/memory.ts', '// Date.now() and setTimeout are not called here\nconst text = "Date.now()";'],
    ['gate/memory.ts', 'class Timers { setTimeout(): void {} }; const t = { setTimeout: 1 }; t.setTimeout;'],
    ['sales/manage.ts', "import { createHash } from 'node:crypto';"],
    ['orders/place.ts', "import type { Gate } from '../gate/port.ts';"],
    ['orders/place.ts', "import { KEY_KEPT_MS, type Ledger } from '../ledger/port.ts';"],
    ['ledger/drivers/sqlite/orders.ts', "import { times } from '../../model/money.ts';"],
    ['http/context.ts', "import type { Shop } from '../engine/shop.ts';"],
    ['http/routes/orders.ts', "import { presentOrder } from '../../views/present.ts';"],
    ['cli/serve.ts', "import { EmbeddedShop } from '../engine/embedded.ts';"],
    ['fastify.ts', "import { engineOf } from './library/doorbuster.ts';"],
  ])('nothing wrong in %s: %s', (file, source) => {
    expect(faultsOf(file, source)).toEqual([]);
  });
});
