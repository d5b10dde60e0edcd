// Child processes of the pipe benchmark. The parent starts them and sends one request after the other.
import { type ChildProcess, fork } from 'node:child_process';
import { adopt, ROOT } from '../support.ts';

/** Milliseconds on the clock that all processes of the machine share. */
export function nowMs(): number {
  const [seconds, nanoseconds] = process.hrtime();
  return seconds * 1000 + nanoseconds / 1e6;
}

interface Question {
  readonly what: string;
  readonly about: unknown;
}

type Answer = { readonly value: unknown } | { readonly error: string };

export class Child {
  readonly #child: ChildProcess;
  readonly #waiting: { resolve(value: unknown): void; reject(error: Error): void }[] = [];

  /** Resolves when the child reports that it is ready. `file` is relative to bench/pipe/. */
  static async start(file: string, job: unknown, execArgv: readonly string[] = []): Promise<Child> {
    const child = new Child(file, job, execArgv);
    await child.#next();
    return child;
  }

  private constructor(file: string, job: unknown, execArgv: readonly string[]) {
    this.#child = adopt(
      fork(`${ROOT}bench/pipe/${file}`, [JSON.stringify(job)], {
        cwd: ROOT,
        execArgv: [...execArgv],
        serialization: 'advanced',
        // Its output must not mix with our tables.
        stdio: ['ignore', 2, 2, 'ipc'],
      }),
    );
    this.#child.on('message', (answer: Answer) => {
      const asked = this.#waiting.shift();
      if ('error' in answer) asked?.reject(new Error(`${file}: ${answer.error}`));
      else asked?.resolve(answer.value);
    });
    this.#child.on('exit', (code) => {
      for (const { reject } of this.#waiting.splice(0)) reject(new Error(`${file} ended with ${code}`));
    });
  }

  get pid(): number {
    return this.#child.pid!;
  }

  #next(): Promise<unknown> {
    return new Promise((resolve, reject) => this.#waiting.push({ resolve, reject }));
  }

  async ask<T>(what: string, about: unknown = null): Promise<T> {
    const answer = this.#next();
    this.#child.send({ what, about } satisfies Question);
    return (await answer) as T;
  }

  /** Lets the child finish its current work. */
  async end(): Promise<void> {
    if (!this.#child.connected) return;
    const ended = new Promise((resolve) => this.#child.once('exit', resolve));
    this.#child.send({ what: 'end', about: null } satisfies Question);
    await ended;
  }
}

// In the child

export function jobOf<T>(): T {
  return JSON.parse(process.argv[2]!) as T;
}

/** Reports that the child is ready, and answers requests by their names, among them `end`. */
export function serve(answers: { end(): Promise<void> } & Record<string, (about: never) => Promise<unknown>>): void {
  // The callback runs once the message is sent: only then may the process end.
  const say = (answer: Answer, then = (): void => {}): void => void process.send!(answer, then);
  process.on('disconnect', () => process.exit(0));
  process.on('message', async ({ what, about }: Question) => {
    try {
      const value = await answers[what]!(about as never);
      if (what === 'end') process.exit(0);
      say({ value });
    } catch (error) {
      say({ error: error instanceof Error ? (error.stack ?? error.message) : String(error) });
    }
  });
  say({ value: null });
}
