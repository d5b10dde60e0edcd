import type { Mutant } from './mutant.ts';

const WRITER_FILE = 'src/ledger/writer.ts';
const HALVED = 'src/base/halved.ts';
const UNRESOLVED = 'src/ledger/unresolved.ts';
const LEFT = 'src/ledger/left-in-pipe.ts';
const MAINTENANCE = 'src/ledger/maintenance.ts';
const EMBEDDED = ['test/unit/writer.test.ts'];
const STREAM = ['test/unit/left-in-pipe.test.ts'];

export const WRITER: readonly Mutant[] = [
  {
    name: 'writer: one order that cannot be stored takes the others of its batch with it',
    file: HALVED,
    find: 'if (batch.length === 1) return',
    replace: 'if (true) return',
    tests: EMBEDDED,
  },
  {
    name: 'writer: the later half of a batch is written first',
    file: HALVED,
    find: 'await halved(batch.slice(0, middle), store, alone);\n  await halved(batch.slice(middle), store, alone);',
    replace: 'await halved(batch.slice(middle), store, alone);\n  await halved(batch.slice(0, middle), store, alone);',
    tests: [...STREAM, ...EMBEDDED],
  },
  {
    name: 'writer: a message in the middle of a batch is lost when it is halved',
    file: HALVED,
    find: 'await halved(batch.slice(middle), store, alone);',
    replace: 'await halved(batch.slice(middle + 1), store, alone);',
    tests: [...EMBEDDED, ...STREAM],
  },
  {
    name: 'writer: an outage is taken for a fault of the batch',
    file: WRITER_FILE,
    find: 'if (error instanceof RetryableError) return this.#undecided.unknown(batch, error);',
    replace: '',
    tests: [...EMBEDDED, ...STREAM],
  },
  {
    name: 'writer: a batch is acknowledged before the gate knows of it',
    file: WRITER_FILE,
    find: 'return { undeliverable, told: tells.length === 1 ? tells[0]! : Promise.all(tells).then(() => undefined) };',
    replace: 'return { undeliverable, told: Promise.resolve() };',
    tests: STREAM,
  },
  {
    name: 'writer: a gate that could not be told is acknowledged',
    file: WRITER_FILE,
    find: 'throw error instanceof RetryableError ? error : unavailable(messageOf(error), error);',
    replace: 'return;',
    tests: STREAM,
  },
  {
    name: 'writer: the gate is told before the commit',
    file: WRITER_FILE,
    find: 'stored = await this.#ledger.commitOrders(batch);',
    replace:
      "void this.#effects.decided(batch.map((m) => ({ order: { ...m, id: m.orderId, status: 'reserved' }, inserted: true })), batch);\n      stored = await this.#ledger.commitOrders(batch);",
    tests: [...STREAM, ...EMBEDDED],
  },
  {
    name: 'unresolved: the ledger is asked to commit while it is out',
    file: UNRESOLVED,
    find: 'if (this.#reason === null) return false;',
    replace: 'return false;',
    tests: EMBEDDED,
  },
  {
    name: 'unresolved: an order that may be stored is withdrawn at once',
    file: UNRESOLVED,
    find: 'this.#messages.push(...batch);',
    replace: 'for (const message of batch) void this.#effects.withdrawn(message);',
    tests: EMBEDDED,
  },
  {
    name: 'unresolved: whoever waits is not told that the ledger is out',
    file: UNRESOLVED,
    find: 'for (const message of batch) this.#effects.failed(message, error);',
    replace: '',
    tests: EMBEDDED,
  },
  {
    name: 'unresolved: a fault with the id of a stored order gives its units back',
    file: UNRESOLVED,
    find: 'if (!stored.has(message.orderId)) await this.#effects.withdrawn(message);',
    replace: 'await this.#effects.withdrawn(message);',
    tests: EMBEDDED,
  },
  {
    name: 'unresolved: a hold whose order the ledger cannot be asked about is forgotten',
    file: UNRESOLVED,
    find: '} catch (unknown) {\n      this.#messages.push(message);',
    replace: '} catch (unknown) {',
    tests: EMBEDDED,
  },
  {
    name: 'unresolved: what is not stored keeps its units',
    file: UNRESOLVED,
    find: 'await Promise.all(missing.map((message) => this.#effects.withdrawn(message)));',
    replace: '',
    tests: EMBEDDED,
  },
  {
    name: 'unresolved: an order that has ended is announced as reserved',
    file: UNRESOLVED,
    find: "inserted: order.status === 'rejected' || !hasEnded(order.status)",
    replace: 'inserted: true',
    tests: EMBEDDED,
  },
  {
    name: 'unresolved: everything is asked about at once',
    file: UNRESOLVED,
    find: 'const asked = this.#messages.slice(0, ASKED_MAX);',
    replace: 'const asked = this.#messages.slice();',
    tests: EMBEDDED,
  },
  {
    name: 'unresolved: a commit that fails during a probe is forgotten',
    file: UNRESOLVED,
    find: 'this.#messages = this.#messages.slice(asked.length);',
    replace: 'this.#messages = [];',
    tests: EMBEDDED,
  },
  {
    name: 'unresolved: it does not probe again after one that failed',
    file: UNRESOLVED,
    find: "'the probe of the ledger failed');\n      this.#probeLater();",
    replace: "'the probe of the ledger failed');",
    tests: EMBEDDED,
  },
  {
    name: 'unresolved: a row that somebody holds takes the ledger out',
    file: UNRESOLVED,
    find: 'if (error instanceof BusyError) return;',
    replace: '',
    tests: EMBEDDED,
  },
  {
    name: 'unresolved: a probe goes on after it was closed',
    file: UNRESOLVED,
    find: 'this.#cancelProbe?.();',
    replace: '',
    tests: EMBEDDED,
  },
  {
    name: 'left in pipe: a ledger that can store nothing makes dead letters',
    file: LEFT,
    find: 'await this.#ledger.probe();',
    replace: '',
    tests: STREAM,
  },
  {
    name: 'left in pipe: a ledger that is back is still said to be out',
    file: LEFT,
    find: 'this.#reason = null;\n    this.#runtime',
    replace: 'this.#runtime',
    tests: STREAM,
  },
  {
    name: 'maintenance: a crowd that never pauses lets the tail grow without end',
    file: MAINTENANCE,
    find: 'if (!(await this.#maintain(BUSY_SLICE_MS))) break;',
    replace: 'break;',
    tests: EMBEDDED,
    only: 'maintenance',
  },
  {
    name: 'maintenance: it stops after one slice',
    file: MAINTENANCE,
    find: 'else if (await this.#maintain(IDLE_SLICE_MS)) this.#whenIdle(IDLE_PAUSE_MS);',
    replace: 'else await this.#maintain(IDLE_SLICE_MS);',
    tests: EMBEDDED,
    only: 'maintenance',
  },
];
