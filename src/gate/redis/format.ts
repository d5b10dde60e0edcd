import { TerminalError } from '../../base/errors.ts';
import type { RedisLink } from '../../base/redis/link.ts';
import { type Format, readsOf } from '../../model/formats.ts';
import { scriptNamed } from './scripts.ts';

/**
 * A process says once a second that it runs. Thirty missed calls: it has ended, or it is stopped and leaves what it cannot
 * read to others when it wakes up.
 */
const SILENT_MS = 30_000;

/** What a prefix had before there was a number. */
const UNNUMBERED = 1;

export interface FormatState {
  /** Null: there is no number yet. */
  readonly inForce: number | null;
  /** The newest format that each process reads which was heard of lately. */
  readonly processes: readonly number[];
}

/** The format of the keys under a prefix (docs/internals/formats.md): this process takes part in it, or finds that it cannot. */
export class PrefixFormat {
  readonly #link: RedisLink;
  readonly #key: string;
  readonly #reads: Format;
  readonly #process: string;
  readonly #silentMs: number;
  #inForce: number | null = null;

  constructor(link: RedisLink, key: string, reads: Format, process: string, silentMs = SILENT_MS) {
    this.#link = link;
    this.#key = key;
    this.#reads = reads;
    this.#process = process;
    this.#silentMs = silentMs;
  }

  /**
   * Says that this process runs, and resolves with the format in force. Fails for good if this version cannot read that one.
   * `fresh`: nothing is under the prefix yet. Where Redis alone has forgotten the number, whoever knows it says it again.
   * `needs`: a format that this process is about to write. Under a prefix that has been fresh it comes into force at once if
   * every process there reads it; otherwise as any other, when processes that do not have been silent for long enough.
   */
  async join(fresh: boolean, needs = 0): Promise<number> {
    const { oldest, newest } = this.#reads;
    const unknown = this.#inForce ?? (fresh ? oldest : UNNUMBERED);
    const begins = fresh && this.#inForce === null ? 1 : 0;
    const args = [this.#process, oldest, newest, unknown, this.#silentMs, needs, begins];
    const inForce = (await this.#link.script(scriptNamed('format'), [this.#key], args)) as number;
    mustRead(inForce, this.#reads, this.#key);
    this.#inForce = inForce;
    return inForce;
  }

  /** For `doctor`: reads what is there, and fails as `join` does. */
  async look(nowMs: number): Promise<FormatState> {
    const flat = (await this.#link.call('HGETALL', [this.#key])) as string[];
    let inForce: number | null = null;
    const processes: number[] = [];
    for (let at = 0; at < flat.length; at += 2) {
      const [field, value] = [flat[at]!, flat[at + 1]!];
      if (field === 'format') inForce = Number(value);
      if (!field.startsWith('process:')) continue;
      const [reads, heardMs] = value.split(' ').map(Number) as [number, number];
      if (nowMs - heardMs <= this.#silentMs) processes.push(reads);
    }
    if (inForce !== null) mustRead(inForce, this.#reads, this.#key);
    return { inForce, processes };
  }
}

function mustRead(inForce: number, reads: Format, key: string): void {
  if (inForce > reads.newest) {
    throw new TerminalError(
      'format_newer',
      `${key} in Redis says format ${inForce}, this doorbuster reads ${readsOf(reads)}: start the newer version here, workers first, then servers`,
    );
  }
  if (inForce < reads.oldest) {
    throw new TerminalError(
      'format_old',
      `${key} in Redis says format ${inForce}, this doorbuster reads ${readsOf(reads)}: upgrade all processes to the version between first; or let the old workers empty the pipe, stop all processes, delete the keys of this prefix and start again (gates are rebuilt from the ledger)`,
    );
  }
}
